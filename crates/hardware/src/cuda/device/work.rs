//! [`GpuBackend`] in CUDA calls.

use std::time::Instant;

use cudarc::driver::{DriverError, result};

use super::kernels::Value;
use super::{DIGEST_AT, Device, FOUND_AT, FOUND_WORDS, Made, TICKS_AT, wide};
use crate::cuda::edge::{
    About, Block, Edge, Found, HostBlock, NoWay, Precision, Product, Work, WrongWord,
};
use crate::cuda::error::{CudaError, Purpose, words};
use crate::cuda::numbers;

impl Edge for Device {
    fn about(&self) -> &About {
        &self.about
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let (free, _) = self.context.mem_get_info().to("query free memory")?;
        Ok(free as u64)
    }

    fn take(&mut self, bytes: u64) -> Result<Block, CudaError> {
        self.context.bind_to_thread().to("create a CUDA context")?;
        // SAFETY: freed by `free`, or when the device is dropped.
        let address = unsafe { result::malloc_sync(wide(bytes)) }.to("allocate GPU memory")?;
        let id = self.number();
        self.blocks.insert(id, address);
        Ok(Block { id, bytes })
    }

    fn give(&mut self, block: Block) -> Result<(), CudaError> {
        let Some(address) = self.blocks.remove(&block.id) else { return Ok(()) };
        // SAFETY: it was allocated by `allocate` or `allocate_peer` and just removed from the map.
        unsafe { result::free_sync(address) }.to("free GPU memory")
    }

    fn take_host(&mut self, bytes: u64) -> Result<HostBlock, CudaError> {
        // SAFETY: freed by `free_host`, or when the device is dropped. It is written before it is
        // read.
        let address = unsafe { result::malloc_host(wide(bytes), 0) }.map_err(of_host)?;
        let id = self.number();
        self.host.insert(id, address);
        Ok(HostBlock { id, bytes })
    }

    fn give_host(&mut self, block: HostBlock) -> Result<(), CudaError> {
        let Some(address) = self.host.remove(&block.id) else { return Ok(()) };
        // SAFETY: it was allocated by `allocate_host` and just removed from the map.
        unsafe { result::free_host(address) }.to("free pinned memory")
    }

    fn peers(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name().unwrap_or_else(words)).collect()
    }

    fn take_peer(&mut self, peer: usize, bytes: u64) -> Result<Block, CudaError> {
        let Some(context) = self.peers.get(peer) else {
            return Err(CudaError::NoSuchGpu { index: peer, count: self.peers.len() });
        };
        context.bind_to_thread().to("create a CUDA context on a peer GPU")?;
        // SAFETY: as in `allocate`; memory is freed by its address whichever context is current.
        let address = unsafe { result::malloc_sync(wide(bytes)) }.to("allocate GPU memory");
        self.context.bind_to_thread().to("create a CUDA context")?;
        let id = self.number();
        self.blocks.insert(id, address?);
        Ok(Block { id, bytes })
    }

    fn product(
        &mut self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Product, NoWay>, CudaError> {
        let plan = match self.way(precision, side)? {
            Ok(plan) => plan,
            Err(why) => return Ok(Err(why)),
        };
        let (factor, sum) = numbers::widths(precision);
        let mut matrices = Vec::new();
        for bytes in [factor, factor, sum].map(|width| side * side * width) {
            match self.take(bytes) {
                Ok(block) => matrices.push(block),
                Err(err) => {
                    for block in matrices {
                        self.give(block)?;
                    }
                    if let (Some(plan), Some(Ok(blas))) = (plan, self.blas.get()) {
                        blas.forget(&plan);
                    }
                    return Err(err);
                }
            }
        }
        let [a, b, c] = [matrices[0], matrices[1], matrices[2]];
        let bits = numbers::bits(precision);
        for (block, seed) in [(a, numbers::SEEDS.0), (b, numbers::SEEDS.1)] {
            let mut values = [
                Value::Wide(self.address(block)?),
                Value::Wide(block.bytes / 4),
                Value::Narrow(seed),
                Value::Narrow(bits.even.0),
                Value::Narrow(bits.even.1),
                Value::Narrow(bits.odd.0),
                Value::Narrow(bits.odd.1),
            ];
            self.launch(&self.kernels.scatter, (self.grid(), 1), &mut values)?;
        }
        let id = self.number();
        self.products.insert(id, Made { side, matrices: [a, b, c], plan });
        Ok(Ok(Product { id, side, result: c }))
    }

    fn forget(&mut self, product: Product) -> Result<(), CudaError> {
        let Some(made) = self.products.remove(&product.id) else { return Ok(()) };
        self.stream.synchronize().to("wait for the GPU")?;
        if let (Some(plan), Some(Ok(blas))) = (made.plan, self.blas.get()) {
            blas.forget(&plan);
        }
        for block in made.matrices {
            self.give(block)?;
        }
        Ok(())
    }

    fn timed(&mut self, work: &[Work]) -> Result<f64, CudaError> {
        let (stream, [start, end]) = (self.stream.cu_stream(), self.events);
        // SAFETY: events and stream belong to this context and live as long as the device.
        unsafe { result::event::record(start, stream) }.to("record an event")?;
        for each in work {
            self.submit(*each)?;
        }
        // SAFETY: as above.
        unsafe { result::event::record(end, stream) }.to("record an event")?;
        self.stream.synchronize().to("wait for the GPU")?;
        // SAFETY: both were recorded on one stream, which is idle.
        let ms = unsafe { result::event::elapsed(start, end) }.to("read the elapsed time")?;
        Ok(f64::from(ms) / 1e3)
    }

    fn submitted(&mut self, work: Work) -> Result<(f64, f64), CudaError> {
        self.stream.synchronize().to("wait for the GPU")?;
        let began = Instant::now();
        self.submit(work)?;
        let submitted = began.elapsed();
        self.stream.synchronize().to("wait for the GPU")?;
        Ok((submitted.as_secs_f64(), began.elapsed().as_secs_f64()))
    }

    fn words(&mut self, block: Block, count: usize) -> Result<Vec<u32>, CudaError> {
        let most = wide(block.bytes / 4);
        self.read_words(self.address(block)?, count.min(most))
    }

    fn found(&mut self) -> Result<Found, CudaError> {
        let words = self.read_words(self.scratch + FOUND_AT, FOUND_WORDS)?;
        self.blank(FOUND_AT, FOUND_WORDS * 4)?;
        Ok(found_of(&words))
    }

    fn digest(&mut self) -> Result<u64, CudaError> {
        let words = self.read_words(self.scratch + DIGEST_AT, 2)?;
        Ok(u64::from(words[1]) << 32 | u64::from(words[0]))
    }

    fn ticks(&mut self) -> Result<u32, CudaError> {
        Ok(self.read_words(self.scratch + TICKS_AT, 1)?[0])
    }

    fn library(&self, precision: Precision) -> String {
        match (precision, self.library_of()) {
            (Precision::Own, _) => "farrier's kernel".to_owned(),
            (_, Ok(blas)) => blas.name.clone(),
            (_, Err(_)) => "no library".to_owned(),
        }
    }
}

/// Pinned memory belongs to the host: running out of it does not implicate the GPU.
fn of_host(err: DriverError) -> CudaError {
    let what = "allocate pinned memory";
    match CudaError::of_driver(what, err) {
        CudaError::OutOfMemory => CudaError::Withheld { what, said: words(err) },
        other => other,
    }
}

/// Decodes the `Found` structure of memory.cu.
fn found_of(words: &[u32]) -> Found {
    let pair = |at: usize| u64::from(words[at + 1]) << 32 | u64::from(words[at]);
    let kept = (words[2] as usize).min(8);
    let some = (0..kept).map(|index| {
        let at = 4 + index * 4;
        WrongWord { word: pair(at), expected: words[at + 2], found: words[at + 3] }
    });
    Found { wrong: pair(0), some: some.collect() }
}
