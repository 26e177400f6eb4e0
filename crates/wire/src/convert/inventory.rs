//! Converts inventories and cordons.

use std::borrow::Cow;

use farrier_fleet::fleet::event::{Cordon, GpuInventory, NodeCompliance, NodeInventory};
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
    let compliance = message.compliance.map(compliance).transpose()?;
    let proto::NodeInventory { boot, agent, kernel, driver, cuda, .. } = message;
    let [kernel, driver, cuda] = [kernel, driver, cuda].map(|text| text.map(escape));
    let agent = escape(agent);
    Ok(NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks, compliance })
}

fn compliance(message: proto::Compliance) -> Result<NodeCompliance, ConvertError> {
    let proto::Compliance { tpm, secure_boot, volumes_encrypted, image_policy } = message;
    within("image policy", image_policy.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
    let image_policy = image_policy.map(escape);
    Ok(NodeCompliance { tpm, secure_boot, volumes_encrypted, image_policy })
}

fn gpus(messages: Vec<proto::Gpu>) -> Result<Vec<GpuInventory>, ConvertError> {
    within("gpus", messages.len(), GPUS_MAX)?;
    let inventories = messages.into_iter().map(|gpu| {
        within("gpu", gpu.uuid.len(), NAME_BYTES_MAX)?;
        within("gpu", gpu.name.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        within("gpu", gpu.pci.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        within("gpu", gpu.serial.as_deref().map_or(0, str::len), NAME_BYTES_MAX)?;
        let (uuid, name) = (GpuUuid(escape(gpu.uuid)), gpu.name.map(escape));
        let (pci, serial) = (gpu.pci.map(escape), gpu.serial.map(escape));
        Ok(GpuInventory { uuid, name, index: gpu.index, pci, serial })
    });
    inventories.collect()
}

pub fn inventory_message(inventory: &NodeInventory) -> proto::NodeInventory {
    let NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks, compliance } =
        inventory.clone();
    let message = |gpu: GpuInventory| proto::Gpu {
        uuid: gpu.uuid.0,
        name: gpu.name,
        index: gpu.index,
        pci: gpu.pci,
        serial: gpu.serial,
    };
    let gpus = gpus.map(|gpus| proto::Gpus { gpus: gpus.into_iter().map(message).collect() });
    let framework = |(name, version)| proto::Framework { name, version };
    let frameworks = frameworks.into_iter().map(framework).collect();
    let compliance = compliance.map(|compliance| proto::Compliance {
        tpm: compliance.tpm,
        secure_boot: compliance.secure_boot,
        volumes_encrypted: compliance.volumes_encrypted,
        image_policy: compliance.image_policy,
    });
    proto::NodeInventory { boot, agent, kernel, driver, cuda, gpus, frameworks, compliance }
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
pub(super) fn escape(text: String) -> String {
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
    fn compliance_survives_the_wire_and_unknown_stays_unknown() {
        let compliance = NodeCompliance {
            tpm: Some(true),
            secure_boot: Some(false),
            volumes_encrypted: None,
            image_policy: Some("signed".to_owned()),
        };
        for compliance in [None, Some(NodeCompliance::default()), Some(compliance)] {
            let before = NodeInventory { compliance, ..NodeInventory::default() };
            assert_eq!(inventory(inventory_message(&before)).unwrap(), before);
        }
        let image_policy = Some("x".repeat(NAME_BYTES_MAX + 1));
        let long = proto::Compliance { image_policy, ..proto::Compliance::default() };
        let message =
            proto::NodeInventory { compliance: Some(long), ..proto::NodeInventory::default() };
        assert!(inventory(message).is_err());
    }

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
