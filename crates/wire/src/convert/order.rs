//! Converts orders and their status.

use farrier_fleet::fleet::{NodeId, Order, OrderKind, OrderStatus, Reason, VerificationLevel};
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::{ConvertError, within};
use crate::limits::TEXT_BYTES_MAX;
use crate::proto;
use crate::proto::order::What;
use crate::proto::order_status::What as Said;

/// An order that this agent cannot decode. The agent refuses it, so that the server does not wait
/// for the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this agent does not know what order {generation} asks for; it may be older than the server"
)]
pub struct UnknownOrder {
    pub generation: u64,
}

/// Decodes an order for the stream's node.
pub fn order(node: NodeId, message: proto::Order) -> Result<Order, UnknownOrder> {
    let unknown = UnknownOrder { generation: message.generation };
    let what = match message.what.ok_or(unknown)? {
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
    Ok(Order { node, generation, kind: what, boot, lease_until, reason })
}

pub fn order_message(order: &Order) -> proto::Order {
    let what = match order.kind.clone() {
        OrderKind::Cordon => What::Cordon(proto::Empty {}),
        OrderKind::Drain { wait_s } => What::Drain(proto::Drain { wait_s }),
        OrderKind::ResetGpu { gpu } => What::ResetGpu(proto::ResetGpu { gpu: gpu.0 }),
        OrderKind::Reboot => What::Reboot(proto::Empty {}),
        OrderKind::RestartService { unit } => What::RestartService(proto::RestartService { unit }),
        OrderKind::Verify { level } => What::Verify(proto::Verify { level: rung_number(level) }),
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

fn rung_number(level: VerificationLevel) -> u32 {
    match level {
        VerificationLevel::V0 => 0,
        VerificationLevel::V1 => 1,
        VerificationLevel::V2 => 2,
        VerificationLevel::V3 => 3,
    }
}

/// Decodes an order status, with the generation of its order.
pub fn answer(message: proto::OrderStatus) -> Result<(u64, OrderStatus), ConvertError> {
    let bounded = |text: String| within("answer", text.len(), TEXT_BYTES_MAX).map(|()| text);
    let answer = match message.what.ok_or(ConvertError::Missing("answer"))? {
        Said::Accepted(_) => OrderStatus::Accepted,
        Said::Done(evidence) => OrderStatus::Done { evidence: bounded(evidence)? },
        Said::Failed(why) => OrderStatus::Failed { reason: bounded(why)? },
        Said::Refused(why) => OrderStatus::Refused { reason: bounded(why)? },
    };
    Ok((message.generation, answer))
}

/// Encodes an order status. Cuts a text that is too long: the status matters more.
pub fn order_status_message(generation: u64, answer: &OrderStatus) -> proto::OrderStatus {
    let what = match answer {
        OrderStatus::Accepted => Said::Accepted(proto::Empty {}),
        OrderStatus::Done { evidence } => Said::Done(cut(evidence)),
        OrderStatus::Failed { reason } => Said::Failed(cut(reason)),
        OrderStatus::Refused { reason } => Said::Refused(cut(reason)),
    };
    proto::OrderStatus { generation, what: Some(what) }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
