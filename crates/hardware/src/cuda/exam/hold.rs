//! Allocations that are freed however a test ends.

use std::ops::{Deref, DerefMut};

use super::super::edge::{Block, Edge, HostBlock, NoWay, Precision, Product};
use super::super::error::CudaError;

/// A backend with everything allocated from it for one test.
pub(super) struct Hold<'e> {
    edge: &'e mut dyn Edge,
    blocks: Vec<Block>,
    host: Vec<HostBlock>,
    products: Vec<Product>,
}

impl<'e> Hold<'e> {
    pub(super) fn of(edge: &'e mut dyn Edge) -> Self {
        Self { edge, blocks: Vec::new(), host: Vec::new(), products: Vec::new() }
    }

    pub(super) fn block(&mut self, bytes: u64) -> Result<Block, CudaError> {
        let block = self.edge.take(bytes)?;
        self.blocks.push(block);
        Ok(block)
    }

    pub(super) fn peer_block(&mut self, peer: usize, bytes: u64) -> Result<Block, CudaError> {
        let block = self.edge.take_peer(peer, bytes)?;
        self.blocks.push(block);
        Ok(block)
    }

    pub(super) fn host_block(&mut self, bytes: u64) -> Result<HostBlock, CudaError> {
        let block = self.edge.take_host(bytes)?;
        self.host.push(block);
        Ok(block)
    }

    pub(super) fn ready(
        &mut self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Product, NoWay>, CudaError> {
        let made = self.edge.product(precision, side)?;
        self.products.extend(made.as_ref().ok());
        Ok(made)
    }

    /// The buffer size for `parts` buffers: at most `bytes` each, and half of the free memory
    /// together.
    pub(super) fn room(&mut self, bytes: u64, parts: u64) -> Result<u64, CudaError> {
        let free = self.edge.free_bytes()?;
        Ok(whole_quads(bytes.min(free / 2 / parts)))
    }
}

/// Rounds down to whole MiB, at least one: kernels access four words at a time.
pub(super) fn whole_quads(bytes: u64) -> u64 {
    (bytes >> 20 << 20).max(1 << 20)
}

impl<'e> Deref for Hold<'e> {
    type Target = dyn Edge + 'e;

    fn deref(&self) -> &Self::Target {
        self.edge
    }
}

impl DerefMut for Hold<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.edge
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // An error here comes from a lost GPU, which the test itself reported.
        for product in self.products.drain(..) {
            let _ = self.edge.forget(product);
        }
        for block in self.blocks.drain(..) {
            let _ = self.edge.give(block);
        }
        for block in self.host.drain(..) {
            let _ = self.edge.give_host(block);
        }
    }
}
