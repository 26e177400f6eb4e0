//! This node: its bundles, its journal, its packages.

use std::path::{Path, PathBuf};

use anyhow::Context;
use farrier_bundle::store::{BundleStoreError, Store};
use farrier_bundle::tuf::client::{ImportError, check_signed};
use farrier_bundle::{Activation, Bundle, BundleId, PackageRole};
use farrier_facts::node::Reading;
use farrier_fleet::change::{BundleRef, ReloadMethod};
use farrier_hardware::Root;
use farrier_hardware::access;
use farrier_hardware::change::{
    BundleFiles, CHANGE_STATE_DIR, ChangeFailpoint, ChangeJournal, ChangeJournalError, LinuxHost,
    NodeChangeActuator, PackageManager, Programs, package_format, package_manager,
};

use crate::commands::bundle::DEFAULT_ROOT;
use crate::failure::Hinted;

/// Where the agent's cordon file is, if the node has no scheduler.
const CORDON_FILE: &str = "/var/lib/farrier/cordon.json";
/// Where bundles are imported to.
const BUNDLES: &str = "/var/lib/farrier/bundles";
const NODE: &str = "Node";

/// Paths of the node.
#[derive(Debug, clap::Args)]
pub(super) struct ChangeNodeArgs {
    /// Folder with the bundles of this node
    #[arg(long, value_name = "DIR", default_value = BUNDLES, help_heading = NODE)]
    bundles: PathBuf,
    /// File with the root metadata whose keys have to have signed the bundles
    #[arg(long, value_name = "FILE", default_value = DEFAULT_ROOT, help_heading = NODE)]
    root: PathBuf,
    /// Folder of the change journal
    #[arg(long, value_name = "DIR", default_value = CHANGE_STATE_DIR, help_heading = NODE)]
    state_dir: PathBuf,
    /// Cordon file of a node without a scheduler
    #[arg(long, value_name = "FILE", default_value = CORDON_FILE, help_heading = NODE)]
    cordon_file: PathBuf,
}

impl ChangeNodeArgs {
    fn store(&self) -> anyhow::Result<Store> {
        Store::open_existing(&self.bundles).map_err(|err| {
            let hint = "`farrier bundle import` makes it";
            anyhow::Error::new(err).context(Hinted::plain("this node has no bundles", hint))
        })
    }

    pub(super) fn actuator(&self) -> anyhow::Result<NodeChangeActuator<LinuxHost>> {
        let packages = packages()?;
        let host = LinuxHost::new(&self.cordon_file, packages.format());
        Ok(NodeChangeActuator::new(BundleFiles::new(self.store()?), packages, host))
    }

    /// Fails unless keys that this node trusts signed a bundle.
    pub(super) fn require_signed(&self, bundle: &Bundle) -> anyhow::Result<()> {
        let signed = check_signed(&self.store()?, &self.root, bundle.id());
        signed.map_err(|err| {
            let hint = match &err {
                ImportError::NotImported { .. } => {
                    "sign it with `farrier bundle sign`, then import it with `farrier bundle import`"
                }
                ImportError::Root { .. } => {
                    "name the root file that this node trusts with --root; get it from those who sign"
                }
                _ => "do not install it before those who sign have looked at it",
            };
            let what = format!("bundle {} is refused", bundle.id().short());
            anyhow::Error::new(err).context(Hinted::plain(&what, hint))
        })
    }

    pub(super) fn read_journal(&self) -> anyhow::Result<ChangeJournal> {
        ChangeJournal::read(&self.state_dir).map_err(|err| journal_error(err, &self.state_dir))
    }

    pub(super) fn open_journal(&self) -> anyhow::Result<ChangeJournal> {
        ChangeJournal::open(&self.state_dir, ChangeFailpoint::from_environment())
            .map_err(|err| journal_error(err, &self.state_dir))
    }

    /// The bundle that a person names by its identity, or by its first digits.
    pub(super) fn bundle(&self, name: &str) -> anyhow::Result<Bundle> {
        let bundles = self.list()?;
        let found: Vec<&Bundle> =
            bundles.iter().filter(|bundle| bundle.id().begins_with(name)).collect();
        match found[..] {
            [bundle] => Ok(bundle.clone()),
            [] => Err(Hinted::error(
                format!("there is no bundle `{name}` on this node"),
                self.hint(&bundles),
            )),
            _ => Err(Hinted::error(
                format!("`{name}` is the start of {} bundle ids", found.len()),
                "give more digits",
            )),
        }
    }

    /// The bundle that is installed. `named` decides if several bundles have the same packages.
    pub(super) fn installed(&self, named: Option<&str>) -> anyhow::Result<Bundle> {
        if let Some(name) = named {
            return self.bundle(name);
        }
        let bundles = self.list()?;
        let packages = packages()?;
        let installed = packages
            .installed(&bundles)
            .context("failed to read the package database of this node")?;
        match installed[..] {
            [bundle] => Ok(bundle.clone()),
            [] => Err(Hinted::error(
                "no bundle on this node has exactly the packages that are installed, so there would be no way back",
                "create a bundle of the installed driver with `farrier bundle create`, and import it",
            )),
            _ => Err(Hinted::error(
                "several bundles have the packages that are installed",
                "name one with --from",
            )),
        }
    }

    fn list(&self) -> anyhow::Result<Vec<Bundle>> {
        let store = match Store::open_existing(&self.bundles) {
            Err(BundleStoreError::NoStore { .. }) => return Ok(Vec::new()),
            opened => opened,
        };
        let inventory = store.and_then(|store| store.inventory());
        let inventory = inventory.with_context(|| {
            format!("failed to read the bundles in `{}`", self.bundles.display())
        })?;
        Ok(inventory.bundles.into_iter().map(|stored| stored.bundle).collect())
    }

    fn hint(&self, bundles: &[Bundle]) -> String {
        if bundles.is_empty() {
            return format!("`{}` has no bundles; import one first", self.bundles.display());
        }
        let known: Vec<String> = bundles
            .iter()
            .map(|bundle| format!("{} ({})", bundle.id().short(), bundle.driver))
            .collect();
        format!("this node has {}", known.join(", "))
    }
}

/// The package manager that has the driver.
fn packages() -> anyhow::Result<Box<dyn PackageManager>> {
    let programs = Programs::default();
    match package_format(&Root::unrecorded("/"), &programs) {
        Reading::Value(format) => Ok(package_manager(format, programs)),
        Reading::Absent => Err(Hinted::error(
            "this node has neither packages of dpkg nor of rpm",
            "change its image",
        )),
        Reading::Unreadable(why) => {
            Err(anyhow::Error::new(why).context("failed to find the package manager of the driver"))
        }
    }
}

pub(super) fn require_root() -> anyhow::Result<()> {
    if access::is_root() {
        return Ok(());
    }
    Err(Hinted::error("changing the driver needs root; nothing was changed", "run it with sudo"))
}

/// What the state machine needs of a bundle.
pub(super) fn reference(bundle: &Bundle) -> BundleRef {
    let has = |role: PackageRole| bundle.with_role(role).next().is_some();
    BundleRef {
        id: bundle.id(),
        driver: bundle.driver.to_string(),
        has_fabric_manager: has(PackageRole::FabricManager),
        reload: match bundle.activation {
            Activation::Reload => ReloadMethod::ReloadModules,
            Activation::Reboot => ReloadMethod::Reboot,
        },
    }
}

/// `535.216.03 (3fa1c09d2b7e)`
pub(super) fn name(driver: &str, id: BundleId) -> String {
    format!("{driver} ({})", id.short())
}

fn journal_error(err: ChangeJournalError, dir: &Path) -> anyhow::Error {
    let hint = match &err {
        ChangeJournalError::InUse { .. } => "`farrier change status` shows what it does".to_owned(),
        ChangeJournalError::Damaged { .. } => format!(
            "compare the node with its bundles (`farrier check`), then move `{}` away",
            dir.display()
        ),
        ChangeJournalError::Newer { .. } => "use the newer farrier".to_owned(),
        ChangeJournalError::Untrusted { .. } => {
            "the folder and the folders above must belong to root".to_owned()
        }
        ChangeJournalError::File { .. } => return anyhow::Error::new(err),
    };
    let message = err.to_string();
    Hinted::error(message, hint)
}
