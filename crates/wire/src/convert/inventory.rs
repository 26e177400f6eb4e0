//! Converts inventories and cordons.

use std::borrow::Cow;

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeInventory};
use farrier_fleet::health::GpuUuid;

use super::{ConvertError, within};
use crate::hidden::escaped;
use crate::limits::{FRAMEWORKS_MAX, GPUS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::proto;
use crate::proto::cordon::What;

pub fn inventory(message: proto::NodeInventory) -> Result<NodeInventory, ConvertError> {
    let name = |what, text: &str| within(what, text.len(), NAME_BYTES_MAX);
    name("boot", &message.boot)?;
    name("agent", &message.agent)?;
    for (what, text) in
        [("kernel", &message.kernel), ("driver", &message.driver), ("cuda", &message.cuda)]
    {
        name(what, text.as_deref().unwrap_or_default())?;
    }
    within("frameworks", message.frameworks.len(), FRAMEWORKS_MAX)?;
    let mut frameworks = Vec::new();
    for it in message.frameworks {
        name("framework", &it.name)?;
        name("framework", &it.version)?;
        frameworks.push((shown(it.name), shown(it.version)));
    }
    let gpus = message.gpus.map(|it| gpus(it.gpus)).transpose()?;
    let proto::NodeInventory { boot, agent, kernel, driver, cuda, .. } = message;
    let [kernel, driver, cuda] = [kernel, driver, cuda].map(|text| text.map(shown));
    let agent = shown(agent);
    Ok(NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks })
}

fn gpus(listed: Vec<proto::Gpu>) -> Result<Vec<GpuInventory>, ConvertError> {
    within("gpus", listed.len(), GPUS_MAX)?;
    let each = listed.into_iter().map(|it| {
        within("gpu", it.uuid.len(), NAME_BYTES_MAX)?;
        within("gpu", it.name.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        within("gpu", it.pci.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        let (uuid, name) = (GpuUuid(shown(it.uuid)), it.name.map(shown));
        Ok(GpuInventory { uuid, name, index: it.index, pci: it.pci.map(shown) })
    });
    each.collect()
}

pub fn inventory_message(inventory: &NodeInventory) -> proto::NodeInventory {
    let NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks } = inventory.clone();
    let gpu = |it: GpuInventory| proto::Gpu {
        uuid: it.uuid.0,
        name: it.name,
        index: it.index,
        pci: it.pci,
    };
    let gpus = gpus.map(|all| proto::Gpus { gpus: all.into_iter().map(gpu).collect() });
    let framework = |(name, version)| proto::Framework { name, version };
    let frameworks = frameworks.into_iter().map(framework).collect();
    proto::NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks }
}

/// Decodes a cordon. An unknown kind becomes [`Cordon::Unknown`].
pub fn cordon(message: proto::Cordon) -> Result<Cordon, ConvertError> {
    Ok(match message.what {
        None => Cordon::Unknown,
        Some(What::None(_)) => Cordon::None,
        Some(What::ByFarrier(_)) => Cordon::ByFarrier,
        Some(What::External(proto::ExternalCordon { owner, reason })) => {
            within("owner", owner.len(), NAME_BYTES_MAX)?;
            within("reason", reason.len(), TEXT_BYTES_MAX)?;
            Cordon::External { owner: shown(owner), reason: shown(reason) }
        }
    })
}

/// Escapes hidden characters: names go into tables, files and other programs.
fn shown(text: String) -> String {
    match escaped(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => clean,
    }
}

pub fn cordon_message(cordon: &Cordon) -> proto::Cordon {
    let what = match cordon.clone() {
        Cordon::Unknown => None,
        Cordon::None => Some(What::None(proto::Empty {})),
        Cordon::ByFarrier => Some(What::ByFarrier(proto::Empty {})),
        Cordon::External { owner, reason } => {
            Some(What::External(proto::ExternalCordon { owner, reason }))
        }
    };
    proto::Cordon { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_move_a_terminal_is_written_out() {
        let evil = "H100\n\u{202e}\x1b[2K";
        let gpu = proto::Gpu {
            uuid: "GPU-1".to_owned(),
            name: Some(evil.to_owned()),
            ..proto::Gpu::default()
        };
        let message = proto::NodeInventory {
            driver: Some(evil.to_owned()),
            gpus: Some(proto::Gpus { gpus: vec![gpu] }),
            ..proto::NodeInventory::default()
        };
        let made = inventory(message).unwrap();
        let shown = Some("H100\\n\\u202e\\u001b[2K".to_owned());
        assert_eq!((made.driver, made.gpus.unwrap()[0].name.clone()), (shown.clone(), shown));
    }
}
