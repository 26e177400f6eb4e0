use super::{Disk, Lab, expect, expect_eq};

pub(super) fn run(lab: &Lab) -> anyhow::Result<()> {
    let mut machine = lab.boot("boot", Disk::Bare)?;
    let output = machine.run(&["sh", "-c", "echo out; echo err >&2; exit 3"])?;
    expect_eq("exit code", output.code, Some(3))?;
    expect_eq("stdout", output.stdout.as_slice(), b"out\n")?;
    expect_eq("stderr", output.stderr.as_slice(), b"err\n")?;
    let missing = machine.run(&["/no/such/program"])?;
    expect_eq("exit code of a missing program", missing.code, Some(127))?;
    let failed = machine.succeed(&["systemctl", "--failed", "--plain", "--no-legend"])?;
    expect_eq("failed units", failed.as_str(), "")?;

    // More than a pipe or a frame takes at once.
    let copied = std::env::current_exe()?;
    machine.copy_in(&copied, "/usr/local/bin/copied")?;
    let bytes = machine.run(&["head", "--bytes=3000000", "/usr/local/bin/copied"])?.stdout;
    let original = std::fs::read(&copied)?;
    expect(original.starts_with(&bytes) && bytes.len() == 3_000_000, || {
        format!("{} bytes came back, and they differ", bytes.len())
    })?;

    machine.script("touch /root/kept && sync")?;
    machine.reboot()?;
    machine.succeed(&["test", "-e", "/root/kept"])?;
    Ok(())
}
