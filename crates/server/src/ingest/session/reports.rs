//! What a node reports: findings, what it is made of, its cordon, and what became of orders.

use std::time::Instant;

use farrier_fleet::fleet::Answer;
use farrier_fleet::fleet::event::{Cordon, Event, Makeup, Record};
use farrier_wire::form::{self, FormError};
use farrier_wire::proto::{self, down};
use hyper::body::Bytes;

use super::super::lanes::{self, LARGE_BYTES, Turn};
use super::{End, Session};
use crate::brain::TakeError;

/// What an inventory takes of the controller's queue, and what an answer or a cordon does.
const MAKEUP_BYTES: usize = 4 << 10;
const SMALL_BYTES: usize = 1 << 10;

impl Session<'_> {
    pub(super) async fn changes(&mut self, said: proto::Changes) -> Result<(), End> {
        if let Some(left) = self.passes_over.checked_sub(1) {
            self.passes_over = left;
            return Ok(());
        }
        if self.last.is_some_and(|last| said.record <= last) {
            return self.acknowledge().await;
        }
        if self.last != Some(said.after) || said.record <= said.after {
            return self.say(down::What::Resync(proto::Resync {})).await;
        }
        let bytes = said.json.len();
        let turn = self.unread(self.desk.lanes.large(bytes)).await?;
        let changes = parsed(said.json, form::changes).await?;
        let record = self.record(said.record);
        let found = Event::Found { node: self.node.clone(), record, changes };
        match self.report(found, bytes, turn).await {
            // All that are open come in one message, which has its bound.
            Err(End::Take(TakeError::TooMany(_))) => {
                return self.say(down::What::Resync(proto::Resync {})).await;
            }
            // Not logged, so not acknowledged.
            Err(End::Take(TakeError::LowSpace)) => {
                self.note_refused();
                return Ok(());
            }
            other => other?,
        }
        self.last = Some(said.record);
        self.acknowledge().await
    }

    pub(super) async fn resynced(&mut self, said: proto::Findings) -> Result<(), End> {
        if self.last.is_some_and(|last| said.record < last) {
            return self.acknowledge().await;
        }
        self.passes_over = 0;
        let bytes = said.json.len();
        let turn = self.unread(self.desk.lanes.large(bytes)).await?;
        self.open_bytes = bytes;
        let open = parsed(said.json, form::open_findings).await?;
        let record = self.record(said.record);
        let resynced = Event::Resynced { node: self.node.clone(), record, open };
        match self.report(resynced, bytes, turn).await {
            // Not logged, so not acknowledged.
            Err(End::Take(TakeError::LowSpace)) => {
                self.note_refused();
                return Ok(());
            }
            other => other?,
        }
        self.last = Some(said.record);
        self.acknowledge().await
    }

    /// Brings a report to the controller, when it is its turn.
    pub(super) async fn report(
        &self,
        event: Event,
        bytes: usize,
        turn: Option<Turn>,
    ) -> Result<(), End> {
        let is_urgent =
            lanes::is_urgent(&event, bytes) && self.quota().may_hurry(bytes, Instant::now());
        let _turn = match turn {
            Some(turn) => Some(turn),
            None if is_urgent => None,
            None => self.unread(self.desk.lanes.ordinary(bytes)).await?,
        };
        self.give(event).await
    }

    /// Disk space is low, and what the node said was not logged.
    pub(super) fn note_refused(&mut self) {
        self.is_refused = true;
        self.pulse.set_delayed(true);
    }

    pub(super) fn record(&self, number: u64) -> Record {
        Record { journal: self.journal.clone(), number }
    }

    pub(super) async fn made_of(&mut self, makeup: Makeup) -> Result<(), End> {
        if self.makeup.as_deref() != Some(&makeup) {
            let refused = makeup.clone();
            let seen = Event::Seen { node: self.node.clone(), makeup };
            match self.report(seen, MAKEUP_BYTES, None).await {
                Err(End::Take(TakeError::LowSpace)) => {
                    self.refused_makeup = Some(Box::new(refused));
                    self.note_refused();
                    return Ok(());
                }
                other => other?,
            }
            self.makeup = self.known().await?.makeup;
        }
        Ok(())
    }

    /// What the scheduler says changes with orders too: whether it is news the brain knows better.
    pub(super) async fn cordoned(&mut self, cordon: Cordon) -> Result<(), End> {
        let seen = Event::CordonSeen { node: self.node.clone(), cordon };
        self.report(seen, SMALL_BYTES, None).await
    }

    pub(super) async fn answered(&mut self, said: proto::OrderAnswer) -> Result<(), End> {
        let (generation, answer) = form::answer(said)?;
        let accepted = answer == Answer::Accepted;
        let answered = Event::Answered { node: self.node.clone(), generation, answer };
        self.report(answered, SMALL_BYTES, None).await?;
        self.say(down::What::AnswerAck(proto::AnswerAck { generation, accepted })).await
    }
}

/// Reads findings; a large report on a thread that may take its time, because those of the runtime serve every other node.
async fn parsed<T: Send + 'static>(
    json: Bytes,
    parse: fn(&[u8]) -> Result<T, FormError>,
) -> Result<T, End> {
    if json.len() < LARGE_BYTES {
        return Ok(parse(&json)?);
    }
    let parsed = tokio::task::spawn_blocking(move || parse(&json)).await;
    Ok(parsed.map_err(|_| TakeError::Ended)??)
}
