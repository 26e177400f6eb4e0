//! The fleet report: the loss ledger of a period, computed from the whole log. The report contains
//! only what the caller may see. For a large fleet, computing it takes longer than an answer may
//! take to begin. The server therefore begins the answer at once, as for an export, and sends the
//! report as one line when it is done. If the report fails, the server sends a problem instead.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrier_fleet::fleet::NodeId;
use farrier_fleet::fleet::ledger::{FleetReport, LedgerSpec};
use hyper::body::Bytes;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::export::{ExportStop, send};
use super::failure::{Failure, internal_error};
use super::reply::{self, Reply};
use super::{Call, pagination};

pub(super) async fn report(mut call: Call) -> Result<Reply, Failure> {
    let from: Option<Timestamp> = call.query.parsed("from")?;
    let to: Option<Timestamp> = call.query.parsed("to")?;
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        return Err(Failure::bad_request("`from` must be before `to`"));
    }
    let now = call.app.controller.now();
    if let Some(from) = from.filter(|from| *from > now) {
        return Err(Failure::bad_request(format!(
            "`from` is {from}, which is in the future: it is {now:.0} on the server; expected an earlier time, or no `from` for the begin of the log"
        )));
    }
    let hours = call.query.number("window_h").and_then(|hours| u32::try_from(hours).ok());
    let spec = LedgerSpec {
        from,
        to,
        scope: call.caller()?.scope().clone(),
        visible: None,
        shadow_window_h: hours.unwrap_or(LedgerSpec::SHADOW_WINDOW_H),
    };
    let slot = Arc::new(call.stream_slot()?);
    let (out, reply) = Reply::stream(reply::LINES, &slot);
    tokio::spawn(async move {
        // While the report is computed, the token is checked too.
        let written = tokio::select! {
            written = write(&call, spec, &out) => written,
            failure = call.token_invalidated() => Err(ExportStop::Failed(failure)),
        };
        if let Err(ExportStop::Failed(failure)) = written {
            let _ = send(&out, &[failure.problem]).await;
        }
        drop(slot);
    });
    Ok(reply)
}

async fn write(
    call: &Call,
    mut spec: LedgerSpec,
    out: &mpsc::Sender<Bytes>,
) -> Result<(), ExportStop> {
    // Computing a report keeps a core busy, so the server computes one report at a time.
    let turn = Arc::clone(&call.rest.reports).acquire_owned().await;
    let turn = turn.map_err(|_| Failure::internal_error())?;
    spec.visible = visible_nodes(call).await?;
    let now = call.app.controller.now();
    let folded = call.app.tail.report(spec, now, out.downgrade()).await;
    drop(turn);
    let report: FleetReport = folded.map_err(|err| internal_error(&err))?;
    send(out, &[report]).await
}

/// The nodes that the caller may see, each with the log entry of its enrolment, because an earlier
/// node with the same name may have had another owner. `None` if the caller sees every node.
async fn visible_nodes(call: &Call) -> Result<Option<BTreeMap<NodeId, u64>>, Failure> {
    let caller = call.caller()?;
    if caller.is_fleet_wide() {
        return Ok(None);
    }
    let visit: pagination::Visit<(NodeId, u64)> =
        Arc::new(|_, id, node, found| found.push((id.clone(), node.first_seq)));
    let mut visible = BTreeMap::new();
    let mut batches = pagination::Batches::new(&call.app.controller, caller, visit);
    while let Some(batch) = batches.next(usize::MAX).await? {
        visible.extend(batch);
    }
    Ok(Some(visible))
}
