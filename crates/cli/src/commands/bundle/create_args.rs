//! Options of `farrier bundle create`.

use std::path::PathBuf;

use farrier_bundle::create::AptSource;
use farrier_bundle::{BundleId, ModuleOption, PackageFormat, PackageRole, Platform, WayBack};
use farrier_facts::version::DriverVersion;
use jiff::civil::Date;

use super::StoreArgs;
use crate::cli::Output;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
pub(crate) struct Args {
    /// Folder of .deb or .rpm files; the bundle has all of them
    #[arg(long, value_name = "DIR", group = "source")]
    pub(super) folder: Option<String>,
    /// apt repository, as in sources.list: 'URI SUITE COMPONENT...' or 'URI ./'; may be repeated
    #[arg(long, value_name = "SOURCE", group = "source", value_parser = apt_source)]
    pub(super) apt: Vec<AptSource>,
    /// URL or folder of a dnf repository; may be repeated
    #[arg(long, value_name = "URL", group = "source")]
    pub(super) dnf: Vec<String>,
    /// Platform of the nodes: DISTRIBUTION/RELEASE/ARCHITECTURE, as in debian/12/amd64
    #[arg(long, value_name = "PLATFORM", value_parser = platform)]
    pub(super) platform: Platform,
    /// Driver version [default with --folder: that of the packages]
    #[arg(long, value_name = "VERSION", required_unless_present = "folder")]
    pub(super) driver: Option<DriverVersion>,
    /// Package that the bundle has to have, with its dependencies; may be repeated
    #[arg(long, value_name = "NAME", required_unless_present = "folder")]
    pub(super) package: Vec<String>,
    /// dpkg status file of a node without the driver: the bundle has what this node lacks
    #[arg(long, value_name = "FILE")]
    pub(super) base: Option<PathBuf>,
    /// Package that must not be installed after the change; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(super) absent: Vec<String>,
    /// Option of a kernel module, such as `nvidia.NVreg_EnableGpuFirmware=1`; may be repeated
    #[arg(long, value_name = "MODULE.OPTION=VALUE", value_parser = module_option)]
    pub(super) module_option: Vec<ModuleOption>,
    /// Kernel release of prebuilt modules; may be repeated
    #[arg(long, value_name = "RELEASE")]
    pub(super) kernel: Vec<String>,
    /// Signer of prebuilt modules, as `modinfo -F signer` prints it
    #[arg(long, value_name = "TEXT")]
    pub(super) signer: Option<String>,
    /// The driver needs a reboot; without this, modules are reloaded
    #[arg(long)]
    pub(super) reboot: bool,
    /// Bundles to which a node can return: any, never, or identities with commas
    #[arg(long, value_name = "BUNDLES", value_parser = way_back, default_value = "any")]
    pub(super) way_back: WayBack,
    /// Role of a package, if its name does not show it: NAME=ROLE; may be repeated
    #[arg(long, value_name = "NAME=ROLE", value_parser = role)]
    pub(super) role: Vec<(String, PackageRole)>,
    /// Date for which the facts hold [default: today]
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = crate::cli::parse_date)]
    pub(super) on: Option<Date>,
    /// Show the plan and store nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(super) output: Output,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

fn apt_source(text: &str) -> Result<AptSource, String> {
    text.parse().map_err(|err: farrier_bundle::create::CreateError| err.to_string())
}

fn platform(text: &str) -> Result<Platform, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let [distribution, release, architecture] = parts[..] else {
        return Err("expected DISTRIBUTION/RELEASE/ARCHITECTURE, as in debian/12/amd64".to_owned());
    };
    let format = match distribution {
        "debian" | "ubuntu" => PackageFormat::Deb,
        "rhel" | "rocky" | "almalinux" | "centos" | "fedora" | "ol" | "amzn" => PackageFormat::Rpm,
        _ => return Err(format!("the package manager of `{distribution}` is not known")),
    };
    Ok(Platform {
        distribution: distribution.to_owned(),
        release: release.to_owned(),
        architecture: architecture.to_owned(),
        format,
    })
}

fn module_option(text: &str) -> Result<ModuleOption, String> {
    let parse = || {
        let (name, value) = text.split_once('=')?;
        let (module, option) = name.split_once('.')?;
        let (module, option, value) = (module.to_owned(), option.to_owned(), value.to_owned());
        Some(ModuleOption { module, option, value })
    };
    parse().ok_or_else(|| "expected MODULE.OPTION=VALUE".to_owned())
}

fn way_back(text: &str) -> Result<WayBack, String> {
    match text {
        "any" => Ok(WayBack::Any),
        "never" => Ok(WayBack::Never),
        list => {
            let bundles = list.split(',').map(str::parse::<BundleId>);
            let bundles = bundles.collect::<Result<Vec<_>, _>>();
            bundles.map(WayBack::Only).map_err(|err| err.to_string())
        }
    }
}

fn role(text: &str) -> Result<(String, PackageRole), String> {
    let (name, role) = text.split_once('=').ok_or("expected NAME=ROLE")?;
    let found = PackageRole::ALL.into_iter().find(|known| known.name() == role);
    let names = || PackageRole::ALL.map(PackageRole::name).join(", ");
    let role = found.ok_or_else(|| format!("`{role}` is no role; expected {}", names()))?;
    Ok((name.to_owned(), role))
}
