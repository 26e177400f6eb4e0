//! Runs an unmodified schemathesis against the OpenAPI document that the server serves: no
//! generated request makes the server fail, and every response conforms to the document.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::test_fleet::TestFleet;

/// Pinned, because another version may generate other requests.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// Checks to run. `positive_data_acceptance` is not among them: OpenAPI cannot express that a time
/// must be in the future.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection,ignored_auth,unsupported_method";

/// Path of schemathesis, which is installed once below `target`. If that fails, for example without
/// a network or Python, the test prints why and is skipped. With `CI=true` it fails instead.
fn schemathesis() -> Option<PathBuf> {
    let profile = Path::new(env!("CARGO_BIN_EXE_farrier")).parent().unwrap();
    let folder = profile.parent().unwrap().join("python-schemathesis");
    match install(&folder) {
        Ok(()) => Some(folder.join("bin/schemathesis")),
        Err(reason) => {
            let on_ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!on_ci, "schemathesis is needed on CI: {reason}");
            eprintln!("SKIPPED: schemathesis cannot be installed: {reason}");
            None
        }
    }
}

fn install(folder: &Path) -> Result<(), String> {
    let lock = File::create(folder.with_extension("lock")).map_err(|err| err.to_string())?;
    lock.lock().map_err(|err| err.to_string())?;
    let marker = folder.join("installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == SCHEMATHESIS) {
        return Ok(());
    }
    let step = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().map_err(|err| err.to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(stderr) }
    };
    step(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let pip = folder.join("bin/python");
    step(Command::new(pip).args(["-m", "pip", "install", "--quiet", SCHEMATHESIS]))?;
    fs::write(&marker, SCHEMATHESIS).map_err(|err| err.to_string())
}

#[test]
fn the_server_conforms_to_its_openapi_document() {
    let Some(schemathesis) = schemathesis() else { return };
    let fleet = TestFleet::plain();
    fleet.report_finding("gpu-1", 1);
    for role in ["admin", "viewer"] {
        let created = fleet.add_user(&["robot", "--role", role]);
        let token = created["token"].as_str().unwrap();
        // Use the name of an existing node, so that not every request is for an unknown one.
        let config = fleet.path("schemathesis.toml");
        fs::write(&config, "[parameters]\n\"path.node\" = \"gpu-1\"\n").unwrap();
        let document = format!("{}/api/v1/openapi.json", fleet.url());
        let mut command = Command::new(&schemathesis);
        command.arg("--config-file").arg(&config).args(["run", &document]);
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
        // A stream never ends, and a retired node would be unknown to later requests.
        command.args(["--exclude-path-regex", "stream|retire", "--checks", CHECKS]);
        command.args(["--phases", "coverage,fuzzing", "--max-examples", "15", "--seed", "7"]);
        command.current_dir(fleet.path("")).env("NO_COLOR", "1").stdin(Stdio::null());
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{role}: {stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let dir = fleet.path_text("server");
    let verified = crate::support::run(&["server", "verify-log", &dir, "--replay"]);
    assert_eq!(verified.code, 0, "{}", verified.stdout);
}
