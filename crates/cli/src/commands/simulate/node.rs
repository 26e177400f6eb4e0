//! `farrier simulate node`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_sim::builder::{self, BuildError, NodeSpec};
use farrier_sim::host::NicConfig;
use farrier_sim::{Host, NodeDir, StoreError};

use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// File name of the library as built by cargo.
const LIBRARY_FILE: &str = "libfarrier_nvml_sim.so";

/// The node to create.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to create the node; must be empty or not exist
    dir: PathBuf,
    /// GPU model, by any of its names
    #[arg(long, value_name = "GPU")]
    sku: String,
    /// Number of GPUs
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    gpus: u32,
    /// Driver version
    #[arg(long, value_name = "VERSION", default_value = "580.95.05")]
    driver: String,
    /// Kernel release, as printed by `uname -r`
    #[arg(long, value_name = "RELEASE", default_value = "6.8.0-86-generic")]
    kernel: String,
    /// Number of InfiniBand ports
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=8))]
    adapters: u32,
    /// Make the ports Ethernet (RoCE)
    #[arg(long)]
    roce: bool,
    /// Number of Elastic Fabric Adapters
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=32))]
    efa: u32,
    /// Seed of UUIDs, serial numbers and the host name
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Freeze the clock at this time, in Unix milliseconds
    #[arg(long, value_name = "MILLISECONDS")]
    clock_unix_ms: Option<u64>,
    /// Replace an existing simulated node
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let library = library()?;
    let spec = NodeSpec {
        sku: args.sku.clone(),
        gpus: args.gpus,
        driver: args.driver.clone(),
        seed: args.seed,
        kernel: args.kernel.clone(),
        now_unix_ms: args.clock_unix_ms.unwrap_or_else(super::now_unix_ms),
    };
    let (mut node, gpus) =
        builder::build_node(&fact_sets::active(), &spec).map_err(|err| with_hint(&err))?;
    node.clock_unix_ms = args.clock_unix_ms;
    let nic_config = NicConfig { ports: args.adapters, ethernet: args.roce, efa: args.efa };
    let host = Host::new(&node, nic_config);
    if args.force {
        require_simulated_node(&args.dir)?;
    }
    let directory = NodeDir::new(&args.dir);
    directory.create(&node, &host, &gpus, args.force).map_err(|err| match err {
        StoreError::NotEmpty { .. } => Hinted::error(
            err.to_string(),
            "choose another directory, or replace the simulated node with `--force`",
        ),
        err => err.into(),
    })?;
    install(&library, &directory)?;
    let name = gpus.first().map_or("", |gpu| gpu.name.as_str());
    printer.line(&format!("{} × {name}, driver {}, {}", gpus.len(), node.driver, node.hostname))?;
    printer.line(&format!("clients: LD_LIBRARY_PATH={}", args.dir.join("lib").display()))?;
    printer.line(&format!("host files: {}", args.dir.join("root").display()))?;
    Ok(())
}

/// Refuses a directory that has files but is not a simulated node. Otherwise a mistyped path could
/// delete the `lib` of a home directory.
fn require_simulated_node(dir: &Path) -> anyhow::Result<()> {
    let occupied = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !dir.join("node.json").is_file() {
        return Err(Hinted::error(
            format!("`{}` is not empty and not a simulated node", dir.display()),
            "choose another directory; `--force` only replaces simulated nodes",
        ));
    }
    Ok(())
}

/// Installs the library in the folder in which the loader looks for it.
fn install(library: &Path, directory: &NodeDir) -> anyhow::Result<()> {
    let target = directory.library_path();
    fs::copy(library, &target).with_context(|| {
        format!("failed to copy `{}` to `{}`", library.display(), target.display())
    })?;
    let symlink = target.with_file_name("libnvidia-ml.so");
    std::os::unix::fs::symlink("libnvidia-ml.so.1", &symlink)
        .with_context(|| format!("failed to create the symlink `{}`", symlink.display()))
}

/// Finds the library. The environment may name it. Otherwise it is next to the executable, in the
/// location of a package, or in the target directory of cargo.
fn library() -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("failed to locate the executable")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    if let Some(path) = std::env::var_os("FARRIER_NVML_SIM").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        return Err(Hinted::error(
            format!("FARRIER_NVML_SIM is set to `{}`, which is not a file", path.display()),
            format!(
                "set it to the `{LIBRARY_FILE}` built by `cargo build -p farrier-nvml-sim`, or unset it"
            ),
        ));
    }
    // The first folder is the one in which cargo builds the library together with this program. The
    // other folders are those of a separate build or an installation.
    let mut candidates = vec![
        folder.join("deps").join(LIBRARY_FILE),
        folder.join(LIBRARY_FILE),
        folder.join("../lib/farrier").join(LIBRARY_FILE),
    ];
    // `cargo install` moves the program but leaves the library in the checkout.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    candidates.extend(
        ["release", "debug"].map(|profile| checkout.join(profile).join("deps").join(LIBRARY_FILE)),
    );
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let expected = folder.join(LIBRARY_FILE);
        Hinted::error(
            format!(
                "the simulated NVML library is missing: `{}`",
                expected.display()
            ),
            format!(
                "build it with `cargo build --release -p farrier-nvml-sim` and copy `target/release/{LIBRARY_FILE}` there, or set FARRIER_NVML_SIM to its path"
            ),
        )
    })
}

fn with_hint(err: &BuildError) -> anyhow::Error {
    let hint = match err {
        BuildError::UnknownSku { suggestions, .. } if !suggestions.is_empty() => {
            let quoted: Vec<String> = suggestions.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", quoted.join(", "))
        }
        BuildError::UnknownSku { .. } | BuildError::OtherVendor { .. } => {
            "`farrier facts gpu` lists the known GPUs".to_owned()
        }
        BuildError::UnknownBranch { .. } => {
            "`farrier facts driver` lists the known branches".to_owned()
        }
        BuildError::InvalidDriver { .. } => "use a version such as 580.95.05".to_owned(),
        BuildError::GpuCount { .. } => "baseboards have 8 GPUs".to_owned(),
    };
    Hinted::error(err.to_string(), hint)
}
