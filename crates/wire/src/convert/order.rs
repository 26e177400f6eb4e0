//! Converts orders and their status.

use farrier_fleet::fleet::{NodeId, Order, OrderKind, OrderStatus, Reason, VerificationLevel};
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::{ConvertError, within};
use crate::limits::TEXT_BYTES_MAX;
use crate::proto;
use crate::proto::order::What;
use crate::proto::order_status::What as StatusWhat;

/// An order that this agent cannot decode. The agent refuses the order, so that the server does not
/// have to wait until the lease of the order expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "order {generation} has a kind that this agent does not know; the agent may be older than the \
     server"
)]
pub struct UnknownOrder {
    pub generation: u64,
}

/// Decodes an order for the node of this session.
pub fn order(node: NodeId, message: proto::Order) -> Result<Order, UnknownOrder> {
    let unknown = UnknownOrder { generation: message.generation };
    let kind = match message.what.ok_or(unknown)? {
        What::Cordon(_) => OrderKind::Cordon,
        What::Drain(proto::Drain { wait_s }) => OrderKind::Drain { wait_s },
        What::ResetGpu(proto::ResetGpu { gpu }) => OrderKind::ResetGpu { gpu: GpuUuid(gpu) },
        What::Reboot(_) => OrderKind::Reboot,
        What::RestartService(proto::RestartService { unit }) => OrderKind::RestartService { unit },
        What::Verify(proto::Verify { level }) => OrderKind::Verify {
            level: match level {
                0 => VerificationLevel::V0,
                1 => VerificationLevel::V1,
                2 => VerificationLevel::V2,
                3 => VerificationLevel::V3,
                _ => return Err(unknown),
            },
        },
        What::Uncordon(_) => OrderKind::Uncordon,
        What::Diag(proto::Diag { level, minutes }) => match u8::try_from(level) {
            Ok(level @ 1..=3) => OrderKind::Diag { level, minutes },
            _ => return Err(unknown),
        },
        What::Tune(proto::Tune { profile }) => OrderKind::Tune { profile },
        What::CollectLogs(_) => OrderKind::CollectLogs,
        What::AcknowledgeRepair(proto::AcknowledgeRepair { repair }) => {
            OrderKind::AcknowledgeRepair { repair }
        }
    };
    let lease_until = Timestamp::from_millisecond(message.lease_until_ms).map_err(|_| unknown)?;
    let proto::Order { generation, boot, reason, reason_code, .. } = message;
    let reason = Reason::Rendered { original_code: reason_code, text: reason };
    Ok(Order { node, generation, kind, boot, lease_until, reason })
}

pub fn order_message(order: &Order) -> proto::Order {
    let what = match order.kind.clone() {
        OrderKind::Cordon => What::Cordon(proto::Empty {}),
        OrderKind::Drain { wait_s } => What::Drain(proto::Drain { wait_s }),
        OrderKind::ResetGpu { gpu } => What::ResetGpu(proto::ResetGpu { gpu: gpu.0 }),
        OrderKind::Reboot => What::Reboot(proto::Empty {}),
        OrderKind::RestartService { unit } => What::RestartService(proto::RestartService { unit }),
        OrderKind::Verify { level } => What::Verify(proto::Verify { level: level_number(level) }),
        OrderKind::Uncordon => What::Uncordon(proto::Empty {}),
        OrderKind::Diag { level, minutes } => {
            What::Diag(proto::Diag { level: level.into(), minutes })
        }
        OrderKind::Tune { profile } => What::Tune(proto::Tune { profile }),
        OrderKind::CollectLogs => What::CollectLogs(proto::Empty {}),
        OrderKind::AcknowledgeRepair { repair } => {
            What::AcknowledgeRepair(proto::AcknowledgeRepair { repair })
        }
    };
    proto::Order {
        generation: order.generation,
        boot: order.boot.clone(),
        lease_until_ms: order.lease_until.as_millisecond(),
        reason: order.reason.to_string(),
        reason_code: order.reason.code().to_owned(),
        what: Some(what),
    }
}

fn level_number(level: VerificationLevel) -> u32 {
    match level {
        VerificationLevel::V0 => 0,
        VerificationLevel::V1 => 1,
        VerificationLevel::V2 => 2,
        VerificationLevel::V3 => 3,
    }
}

/// Decodes an order status and the generation of its order.
pub fn order_status(message: proto::OrderStatus) -> Result<(u64, OrderStatus), ConvertError> {
    let bounded = |text: String| within("order status", text.len(), TEXT_BYTES_MAX).map(|()| text);
    let inconclusive = message.inconclusive;
    let status = match message.what.ok_or(ConvertError::Missing("order status"))? {
        StatusWhat::Accepted(_) => OrderStatus::Accepted,
        StatusWhat::Done(evidence) => OrderStatus::Done { evidence: bounded(evidence)? },
        StatusWhat::Failed(reason) if inconclusive => {
            OrderStatus::Inconclusive { reason: bounded(reason)? }
        }
        StatusWhat::Failed(reason) => OrderStatus::Failed { reason: bounded(reason)? },
        StatusWhat::Refused(reason) => OrderStatus::Refused { reason: bounded(reason)? },
    };
    Ok((message.generation, status))
}

/// Encodes an order status. Cuts a text that is too long, because the status matters more.
pub fn order_status_message(generation: u64, status: &OrderStatus) -> proto::OrderStatus {
    let what = match status {
        OrderStatus::Accepted => StatusWhat::Accepted(proto::Empty {}),
        OrderStatus::Done { evidence } => StatusWhat::Done(truncate(evidence)),
        OrderStatus::Failed { reason } | OrderStatus::Inconclusive { reason } => {
            StatusWhat::Failed(truncate(reason))
        }
        OrderStatus::Refused { reason } => StatusWhat::Refused(truncate(reason)),
    };
    let inconclusive = matches!(status, OrderStatus::Inconclusive { .. });
    proto::OrderStatus { generation, what: Some(what), inconclusive }
}

fn truncate(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
