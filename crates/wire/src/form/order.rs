//! Orders, and what became of them.

use farrier_fleet::fleet::{Answer, NodeId, Order, OrderKind, Reason, Rung};
use farrier_fleet::health::GpuUuid;
use jiff::Timestamp;

use super::{FormError, within};
use crate::limits::TEXT_BYTES_MAX;
use crate::proto;
use crate::proto::order::What;
use crate::proto::order_answer::What as Said;

/// An order that this agent does not know how to read: it is answered, so that nobody waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this agent does not know what order {generation} asks for; it may be older than the server"
)]
pub struct UnknownOrder {
    /// Which.
    pub generation: u64,
}

/// Makes an order of a message. It is for the node to which the stream belongs.
pub fn order(node: NodeId, message: proto::Order) -> Result<Order, UnknownOrder> {
    let unknown = UnknownOrder { generation: message.generation };
    let what = match message.what.ok_or(unknown)? {
        What::Cordon(_) => OrderKind::Cordon,
        What::Drain(proto::Drain { wait_s }) => OrderKind::Drain { wait_s },
        What::ResetGpu(proto::ResetGpu { gpu }) => OrderKind::ResetGpu { gpu: GpuUuid(gpu) },
        What::Reboot(_) => OrderKind::Reboot,
        What::RestartService(proto::RestartService { unit }) => OrderKind::RestartService { unit },
        What::Verify(proto::Verify { rung }) => OrderKind::Verify {
            rung: match rung {
                0 => Rung::V0,
                1 => Rung::V1,
                2 => Rung::V2,
                3 => Rung::V3,
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
        What::NoteRepair(proto::NoteRepair { what }) => OrderKind::NoteRepair { what },
    };
    let lease_until = Timestamp::from_millisecond(message.lease_until_ms).map_err(|_| unknown)?;
    let proto::Order { generation, boot, reason, reason_code, .. } = message;
    let reason = Reason::Rendered { of: reason_code, text: reason };
    Ok(Order { node, generation, what, boot, lease_until, reason })
}

/// Makes a message of an order.
pub fn order_message(order: &Order) -> proto::Order {
    let what = match order.what.clone() {
        OrderKind::Cordon => What::Cordon(proto::Nothing {}),
        OrderKind::Drain { wait_s } => What::Drain(proto::Drain { wait_s }),
        OrderKind::ResetGpu { gpu } => What::ResetGpu(proto::ResetGpu { gpu: gpu.0 }),
        OrderKind::Reboot => What::Reboot(proto::Nothing {}),
        OrderKind::RestartService { unit } => What::RestartService(proto::RestartService { unit }),
        OrderKind::Verify { rung } => What::Verify(proto::Verify { rung: rung_number(rung) }),
        OrderKind::Uncordon => What::Uncordon(proto::Nothing {}),
        OrderKind::Diag { level, minutes } => {
            What::Diag(proto::Diag { level: level.into(), minutes })
        }
        OrderKind::Tune { profile } => What::Tune(proto::Tune { profile }),
        OrderKind::CollectLogs => What::CollectLogs(proto::Nothing {}),
        OrderKind::NoteRepair { what } => What::NoteRepair(proto::NoteRepair { what }),
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

fn rung_number(rung: Rung) -> u32 {
    match rung {
        Rung::V0 => 0,
        Rung::V1 => 1,
        Rung::V2 => 2,
        Rung::V3 => 3,
    }
}

/// Makes an answer of a message, with the generation of the order.
pub fn answer(message: proto::OrderAnswer) -> Result<(u64, Answer), FormError> {
    let bounded = |text: String| within("answer", text.len(), TEXT_BYTES_MAX).map(|()| text);
    let answer = match message.what.ok_or(FormError::Missing("answer"))? {
        Said::Accepted(_) => Answer::Accepted,
        Said::Done(evidence) => Answer::Done { evidence: bounded(evidence)? },
        Said::Failed(why) => Answer::Failed { why: bounded(why)? },
        Said::Refused(why) => Answer::Refused { why: bounded(why)? },
    };
    Ok((message.generation, answer))
}

/// Makes a message of an answer. A text that is too long is cut: the answer matters more.
pub fn answer_message(generation: u64, answer: &Answer) -> proto::OrderAnswer {
    let what = match answer {
        Answer::Accepted => Said::Accepted(proto::Nothing {}),
        Answer::Done { evidence } => Said::Done(cut(evidence)),
        Answer::Failed { why } => Said::Failed(cut(why)),
        Answer::Refused { why } => Said::Refused(cut(why)),
    };
    proto::OrderAnswer { generation, what: Some(what) }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
