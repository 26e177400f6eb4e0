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
    for framework in message.frameworks {
        name("framework", &framework.name)?;
        name("framework", &framework.version)?;
        frameworks.push((escape(framework.name), escape(framework.version)));
    }
    let gpus = message.gpus.map(|message| gpus(message.gpus)).transpose()?;
    let proto::NodeInventory { boot, agent, kernel, driver, cuda, .. } = message;
    let [kernel, driver, cuda] = [kernel, driver, cuda].map(|text| text.map(escape));
    let agent = escape(agent);
    Ok(NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks })
}

fn gpus(messages: Vec<proto::Gpu>) -> Result<Vec<GpuInventory>, ConvertError> {
    within("gpus", messages.len(), GPUS_MAX)?;
    let inventories = messages.into_iter().map(|gpu| {
        within("gpu", gpu.uuid.len(), NAME_BYTES_MAX)?;
        within("gpu", gpu.name.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        within("gpu", gpu.pci.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        let (uuid, name) = (GpuUuid(escape(gpu.uuid)), gpu.name.map(escape));
        Ok(GpuInventory { uuid, name, index: gpu.index, pci: gpu.pci.map(escape) })
    });
    inventories.collect()
}

pub fn inventory_message(inventory: &NodeInventory) -> proto::NodeInventory {
    let NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks } = inventory.clone();
    let message = |gpu: GpuInventory| proto::Gpu {
        uuid: gpu.uuid.0,
        name: gpu.name,
        index: gpu.index,
        pci: gpu.pci,
    };
    let gpus = gpus.map(|gpus| proto::Gpus { gpus: gpus.into_iter().map(message).collect() });
    let framework = |(name, version)| proto::Framework { name, version };
    let frameworks = frameworks.into_iter().map(framework).collect();
    proto::NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks }
}

/// Decodes a cordon. If its kind is unknown, the result is [`Cordon::Unknown`].
pub fn cordon(message: proto::Cordon) -> Result<Cordon, ConvertError> {
    Ok(match message.what {
        None => Cordon::Unknown,
        Some(What::None(_)) => Cordon::None,
        Some(What::ByFarrier(_)) => Cordon::ByFarrier,
        Some(What::External(proto::ExternalCordon { owner, reason })) => {
            within("owner", owner.len(), NAME_BYTES_MAX)?;
            within("reason", reason.len(), TEXT_BYTES_MAX)?;
            Cordon::External { owner: escape(owner), reason: escape(reason) }
        }
    })
}

/// Escapes hidden characters, because names are passed on to tables, files and other programs.
fn escape(text: String) -> String {
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
    fn control_characters_in_names_are_escaped() {
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
        let inventory = inventory(message).unwrap();
        let escaped = Some("H100\\n\\u202e\\u001b[2K".to_owned());
        let gpu_name = inventory.gpus.unwrap()[0].name.clone();
        assert_eq!((inventory.driver, gpu_name), (escaped.clone(), escaped));
    }
}
