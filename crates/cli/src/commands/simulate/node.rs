//! `farrier simulate node`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_sim::host::Adapters;
use farrier_sim::make::{self, MakeError, Spec};
use farrier_sim::{Host, NodeDir, StoreError};

use crate::fact_sets;
use crate::failure::Hinted;
use crate::printer::Printer;

/// The name of the library as it is built.
const BUILT: &str = "libfarrier_nvml_sim.so";

/// The node to make.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to make it; must be empty or not there
    dir: PathBuf,
    /// The GPU, by any of its names
    #[arg(long, value_name = "GPU")]
    sku: String,
    /// How many of them
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    gpus: u32,
    /// The driver
    #[arg(long, value_name = "VERSION", default_value = "580.95.05")]
    driver: String,
    /// The kernel, as `uname -r` prints it
    #[arg(long, value_name = "RELEASE", default_value = "6.8.0-86-generic")]
    kernel: String,
    /// InfiniBand ports
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=8))]
    adapters: u32,
    /// The adapters are Ethernet (RoCE)
    #[arg(long)]
    roce: bool,
    /// Elastic Fabric Adapters
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=32))]
    efa: u32,
    /// Decides UUIDs, serial numbers and the host's name
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Make it with a clock that stands still at this moment, in milliseconds of the Unix clock
    #[arg(long, value_name = "MILLISECONDS")]
    clock_unix_ms: Option<u64>,
    /// Replace the node that is there
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, printer: &mut Printer) -> anyhow::Result<()> {
    let library = library()?;
    let spec = Spec {
        sku: args.sku.clone(),
        gpus: args.gpus,
        driver: args.driver.clone(),
        seed: args.seed,
        kernel: args.kernel.clone(),
        now_unix_ms: args.clock_unix_ms.unwrap_or_else(super::now_unix_ms),
    };
    let (mut node, gpus) = make::node(&fact_sets::active(), &spec).map_err(|err| hinted(&err))?;
    node.clock_unix_ms = args.clock_unix_ms;
    let adapters = Adapters { ports: args.adapters, ethernet: args.roce, efa: args.efa };
    let host = Host::of(&node, adapters);
    if args.force {
        refuse_stranger(&args.dir)?;
    }
    let directory = NodeDir::at(&args.dir);
    directory.create(&node, &host, &gpus, args.force).map_err(|err| match err {
        StoreError::NotEmpty { .. } => Hinted::error(
            err.to_string(),
            "name another directory, or replace the simulated node in it with `--force`",
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

/// Only a simulated node is replaced: a slip of the finger must not cost a home directory's `lib`.
fn refuse_stranger(dir: &Path) -> anyhow::Result<()> {
    let occupied = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if occupied && !dir.join("node.json").is_file() {
        return Err(Hinted::error(
            format!("`{}` is not empty and is no simulated node", dir.display()),
            "name another directory: `--force` replaces simulated nodes only",
        ));
    }
    Ok(())
}

/// Puts the library where loaders look for it.
fn install(library: &Path, directory: &NodeDir) -> anyhow::Result<()> {
    let target = directory.library_path();
    fs::copy(library, &target).with_context(|| {
        format!("failed to copy `{}` to `{}`", library.display(), target.display())
    })?;
    let short = target.with_file_name("libnvidia-ml.so");
    std::os::unix::fs::symlink("libnvidia-ml.so.1", &short)
        .with_context(|| format!("failed to make the link `{}`", short.display()))
}

/// The library: where the environment says, beside the executable, where packages put it, or where it was built with this program.
fn library() -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("failed to find the own executable")?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    if let Some(named) = std::env::var_os("FARRIER_NVML_SIM").map(PathBuf::from) {
        if named.is_file() {
            return Ok(named);
        }
        return Err(Hinted::error(
            format!("FARRIER_NVML_SIM names `{}`, and there is no file", named.display()),
            format!("name the `{BUILT}` that `cargo build -p farrier-nvml-sim` makes, or unset it"),
        ));
    }
    // Where cargo leaves it when it builds this program; then where it lies when it was built or installed by itself.
    let mut places = vec![
        folder.join("deps").join(BUILT),
        folder.join(BUILT),
        folder.join("../lib/farrier").join(BUILT),
    ];
    // `cargo install` moves the program away and leaves the library in the checkout.
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    places.extend(["release", "debug"].map(|it| checkout.join(it).join("deps").join(BUILT)));
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let beside = folder.join(BUILT);
        Hinted::error(
            format!(
                "simulated nodes need `{BUILT}`, a library that answers as NVML does, and it is not beside this program: `{}`",
                beside.display()
            ),
            format!(
                "in a checkout `cargo build --release -p farrier-nvml-sim` makes it as `target/release/{BUILT}`: copy it there, or name it in FARRIER_NVML_SIM"
            ),
        )
    })
}

fn hinted(err: &MakeError) -> anyhow::Error {
    let hint = match err {
        MakeError::UnknownSku { near, .. } if !near.is_empty() => {
            let quoted: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
            format!("did you mean {}?", quoted.join(", "))
        }
        MakeError::UnknownSku { .. } => "`farrier facts gpu` lists what there is".to_owned(),
        MakeError::UnknownBranch { .. } => "`farrier facts driver` lists what there is".to_owned(),
        MakeError::Driver { .. } => "a driver version is such as 580.95.05".to_owned(),
        MakeError::Gpus { .. } => "eight is what baseboards have".to_owned(),
    };
    Hinted::error(err.to_string(), hint)
}
