//! A simulated GPU: does the work of [`GpuBackend`] on the host, in little memory and on a clock of
//! its own, with injected slowness and errors. Tests run on it as on a real one.

mod description;

use std::collections::BTreeMap;

use super::edge::{
    About, Block, Edge, Found, HostBlock, NoWay, Precision, Product, Work, WrongWord, chain, mixed,
};
use super::error::CudaError;
use super::numbers;

pub use description::{Ailment, SimulatedGpu};

impl SimulatedGpu {
    /// Opens it for tests, unless one of its faults prevents that.
    pub fn open(self) -> Result<Simulated, CudaError> {
        let (major, minor) = self.compute_capability;
        if major < 7 {
            let said = format!("compute capability 7.0 is required, this GPU has {major}.{minor}");
            return Err(CudaError::Withheld { what: "load the kernels", said });
        }
        let is_gone = |it: &Ailment| matches!(it, Ailment::Gone { mark, .. } if mark.exists());
        if self.ailments.iter().any(is_gone) {
            return Err(CudaError::Refused { what: "create a CUDA context", said: lost() });
        }
        let about = About {
            name: self.name.clone(),
            compute_capability: self.compute_capability,
            processors: self.processors,
            memory_bytes: self.memory_mib << 20,
        };
        Ok(Simulated {
            gpu: self,
            about,
            blocks: BTreeMap::new(),
            host: BTreeMap::new(),
            products: BTreeMap::new(),
            next: 0,
            done: 0,
            multiplied: 0,
            clock_s: 0.0,
            found: Found::default(),
            digest: 0,
            ticks: 0,
        })
    }
}

#[derive(Debug)]
pub struct Simulated {
    gpu: SimulatedGpu,
    about: About,
    blocks: BTreeMap<usize, Vec<u32>>,
    host: BTreeMap<usize, Vec<u32>>,
    /// With the first words of their results.
    products: BTreeMap<usize, (Precision, [u32; 2])>,
    next: usize,
    /// Work items so far, and GEMMs among them.
    done: u32,
    multiplied: u32,
    clock_s: f64,
    found: Found,
    digest: u64,
    ticks: u32,
}

impl Simulated {
    fn share(&self, of: impl Fn(&Ailment) -> Option<f64>) -> f64 {
        self.gpu.ailments.iter().filter_map(of).product()
    }

    fn memory_s(&self, bytes: u64) -> f64 {
        let slow = self.share(|it| match it {
            Ailment::SlowMemory(share) => Some(*share),
            _ => None,
        });
        seconds(bytes, self.gpu.memory_gb_per_s * slow)
    }

    fn pcie_s(&self, bytes: u64) -> f64 {
        let slow = self.share(|it| match it {
            Ailment::SlowPcie(share) => Some(*share),
            _ => None,
        });
        seconds(bytes, self.gpu.pcie_gb_per_s * slow)
    }

    fn product_s(&self, precision: Precision, operations: u64) -> f64 {
        let slow = self.share(|it| match it {
            Ailment::SlowProducts(share) => Some(*share),
            Ailment::Fading(left) => Some(left.powf((self.clock_s / 60.0).min(1.0))),
            _ => None,
        });
        let factor = match precision {
            Precision::Fp8 => 1.9,
            Precision::Tf32 => 0.5,
            Precision::Fp64 => 0.07,
            Precision::Own => 0.6,
            Precision::Bf16 | Precision::Fp16 => 1.0,
        };
        seconds(operations, self.gpu.tflops * factor * slow * 1e3)
    }

    fn used_bytes(&self) -> u64 {
        self.blocks.values().map(|words| words.len() as u64 * 4).sum()
    }

    fn block(&mut self, block: Block) -> &mut Vec<u32> {
        self.blocks.entry(block.id).or_default()
    }

    /// What a read of a buffer returns: as written, except for stuck bits.
    fn read_back(&self, block: Block) -> Vec<u32> {
        let mut words = self.blocks.get(&block.id).cloned().unwrap_or_default();
        for ailment in &self.gpu.ailments {
            if let Ailment::StuckBit { word, bit } = ailment {
                let place = usize::try_from(*word).unwrap_or(usize::MAX);
                if let Some(word) = words.get_mut(place) {
                    *word |= 1 << bit;
                }
            }
        }
        words
    }

    /// Whether an SM gives wrong results now.
    fn is_wrong(&self, processor: u32) -> bool {
        self.gpu.ailments.iter().any(|it| {
            matches!(it, Ailment::WrongProcessor { processor: bad, after }
                if *bad == processor && self.done > *after)
        })
    }

    /// Does the work and returns how long a GPU would have taken.
    fn run(&mut self, work: Work) -> Result<f64, CudaError> {
        self.done += 1;
        for ailment in &self.gpu.ailments {
            match ailment {
                Ailment::Lost { after } if self.done > *after => {
                    return Err(CudaError::Refused { what: "wait for the GPU", said: lost() });
                }
                Ailment::Gone { after, mark } if self.done > *after => {
                    // If the file cannot be created, this acts like `Lost`.
                    let _ = std::fs::write(mark, "lost\n");
                    return Err(CudaError::Refused { what: "wait for the GPU", said: lost() });
                }
                Ailment::UnfitLibrary if self.is_by_library(work) => {
                    return Err(CudaError::of_blas("multiply matrices", 8));
                }
                Ailment::Hung { after } if self.done > *after => loop {
                    std::thread::park();
                },
                _ => {}
            }
        }
        let spent_s = match work {
            Work::Fill(block, pattern) => {
                for (at, word) in self.block(block).iter_mut().enumerate() {
                    *word = pattern.word(at as u64);
                }
                self.memory_s(block.bytes)
            }
            Work::Check(block, pattern) => {
                for (at, found) in self.read_back(block).into_iter().enumerate() {
                    let expected = pattern.word(at as u64);
                    if found != expected {
                        self.found.wrong += 1;
                        if self.found.some.len() < 8 {
                            self.found.some.push(WrongWord { word: at as u64, expected, found });
                        }
                    }
                }
                self.memory_s(block.bytes)
            }
            Work::Read(block) => self.memory_s(block.bytes),
            Work::Copy(from, to) | Work::CopyByEngine(from, to) => self.copy(from, to),
            Work::ToGpu(host, block) => {
                let words = self.host.get(&host.id).cloned().unwrap_or_default();
                self.block(block).copy_from_slice(&words);
                self.pcie_s(block.bytes)
            }
            Work::ToHost(block, host) => {
                let words = self.read_back(block);
                self.host.insert(host.id, words);
                self.pcie_s(block.bytes)
            }
            Work::Prove(block, rounds) => self.prove(block, rounds),
            Work::Hunt(sums, places, rounds) => {
                let whole = (0..256).map(|thread| mixed(chain(thread, rounds) ^ thread));
                let sum = whole.fold(0_u32, u32::wrapping_add);
                self.hunt(sums, places, sum)
            }
            Work::HuntTensor(sums, places, rounds) => self.hunt(sums, places, mixed(rounds)),
            Work::Multiply(product) => self.multiply(product),
            Work::Digest(block) => {
                let words = self.read_back(block);
                self.digest = words
                    .iter()
                    .fold(0, |sum, word| sum.wrapping_mul(31).wrapping_add(u64::from(*word)));
                self.memory_s(block.bytes)
            }
            Work::Ticks(times) => {
                self.ticks = self.ticks.wrapping_add(times);
                f64::from(times) * self.gpu.launch_us.0 * 1e-6
            }
            Work::TickGraph(nodes) => {
                self.ticks = self.ticks.wrapping_add(nodes);
                f64::from(nodes) * self.gpu.launch_us.1 * 1e-6
            }
        };
        self.clock_s += spent_s;
        Ok(spent_s)
    }

    fn is_by_library(&self, work: Work) -> bool {
        let Work::Multiply(product) = work else { return false };
        self.products.get(&product.id).is_some_and(|(precision, _)| *precision != Precision::Own)
    }

    fn copy(&mut self, from: Block, to: Block) -> f64 {
        let words = self.read_back(from);
        let both_here = is_here(from) && is_here(to);
        self.block(to).copy_from_slice(&words);
        let bytes = from.bytes.min(to.bytes);
        if both_here { self.memory_s(2 * bytes) } else { seconds(bytes, self.gpu.peer_gb_per_s) }
    }

    fn prove(&mut self, block: Block, rounds: u32) -> f64 {
        let processors = self.gpu.processors.max(1);
        let bad: Vec<bool> = (0..processors).map(|processor| self.is_wrong(processor)).collect();
        for (at, word) in (0_u32..).zip(self.block(block).iter_mut()) {
            let is_bad = bad[(at / 2048 % processors) as usize];
            *word = chain(at, rounds) ^ u32::from(is_bad);
        }
        1e-4
    }

    fn hunt(&mut self, sums: Block, places: Block, sum: u32) -> f64 {
        let processors = self.gpu.processors.max(1);
        let bad: Vec<bool> = (0..processors).map(|processor| self.is_wrong(processor)).collect();
        for (at, word) in (0_u32..).zip(self.block(sums).iter_mut()) {
            *word = sum ^ u32::from(bad[(at % processors) as usize]);
        }
        let few = self.gpu.ailments.iter().find_map(|it| match it {
            Ailment::FewProcessors(count) => Some((*count).max(1)),
            _ => None,
        });
        for (at, word) in (0_u32..).zip(self.block(places).iter_mut()) {
            *word = at % few.unwrap_or(processors);
        }
        0.05
    }

    fn multiply(&mut self, product: Product) -> f64 {
        self.multiplied += 1;
        let Some((precision, words)) = self.products.get(&product.id).copied() else { return 0.0 };
        let is_wrong =
            self.gpu.ailments.iter().any(
                |it| matches!(it, Ailment::WrongProduct { after } if self.multiplied > *after),
            );
        let result = self.block(product.result);
        for (place, word) in result.iter_mut().zip(words) {
            *place = word;
        }
        if let Some(last) = result.last_mut() {
            *last = u32::from(is_wrong);
        }
        self.product_s(precision, product.operations())
    }
}

fn lost() -> String {
    "CUDA_ERROR_ECC_UNCORRECTABLE, simulated".to_owned()
}

/// Ids from here on are peer buffers.
const PEER: usize = 1 << 32;

fn is_here(block: Block) -> bool {
    block.id < PEER
}

fn seconds(amount: u64, giga_per_s: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "amounts of a test fit 52 bits")]
    let amount = amount as f64;
    amount / (giga_per_s * 1e9)
}

fn words_of(bytes: u64) -> usize {
    usize::try_from(bytes / 4).unwrap_or(usize::MAX)
}

impl Edge for Simulated {
    fn about(&self) -> &About {
        &self.about
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let full = self.gpu.ailments.iter().find_map(|it| match it {
            Ailment::Full { left_mib } => Some(left_mib << 20),
            _ => None,
        });
        let all = full.unwrap_or(self.gpu.memory_mib << 20);
        Ok(all.saturating_sub(self.used_bytes()))
    }

    fn take(&mut self, bytes: u64) -> Result<Block, CudaError> {
        if bytes > self.free_bytes()? {
            return Err(CudaError::OutOfMemory);
        }
        self.next += 1;
        self.blocks.insert(self.next, vec![0; words_of(bytes)]);
        Ok(Block { id: self.next, bytes })
    }

    fn give(&mut self, block: Block) -> Result<(), CudaError> {
        self.blocks.remove(&block.id);
        Ok(())
    }

    fn take_host(&mut self, bytes: u64) -> Result<HostBlock, CudaError> {
        if self.gpu.ailments.contains(&Ailment::NoPinnedMemory) {
            let said = "CUDA_ERROR_OUT_OF_MEMORY, simulated".to_owned();
            return Err(CudaError::Withheld { what: "allocate pinned memory", said });
        }
        self.next += 1;
        self.host.insert(self.next, vec![0; words_of(bytes)]);
        Ok(HostBlock { id: self.next, bytes })
    }

    fn give_host(&mut self, block: HostBlock) -> Result<(), CudaError> {
        self.host.remove(&block.id);
        Ok(())
    }

    fn peers(&self) -> Vec<String> {
        (1..=self.gpu.peers).map(|peer| format!("{} {peer}", self.gpu.name)).collect()
    }

    fn take_peer(&mut self, _peer: usize, bytes: u64) -> Result<Block, CudaError> {
        self.next += 1;
        let id = PEER + self.next;
        self.blocks.insert(id, vec![0; words_of(bytes)]);
        Ok(Block { id, bytes })
    }

    fn product(
        &mut self,
        precision: Precision,
        side: u64,
    ) -> Result<Result<Product, NoWay>, CudaError> {
        if let Some(lacked) = precision.lacked(self.gpu.compute_capability) {
            return Ok(Err(lacked));
        }
        if !self.gpu.has_library && precision != Precision::Own {
            return Ok(Err(NoWay::of_machine("no libcublasLt was found".to_owned())));
        }
        // No values are multiplied: the result holds the expected first value and a word that
        // changes the digest.
        let result = self.take(64)?;
        self.next += 1;
        let (first, _) = numbers::first_expected(precision, side);
        self.products.insert(self.next, (precision, numbers::stored(precision, first)));
        Ok(Ok(Product { id: self.next, side, result }))
    }

    fn forget(&mut self, product: Product) -> Result<(), CudaError> {
        self.products.remove(&product.id);
        self.give(product.result)
    }

    fn timed(&mut self, work: &[Work]) -> Result<f64, CudaError> {
        work.iter().map(|work| self.run(*work)).sum()
    }

    fn submitted(&mut self, work: Work) -> Result<(f64, f64), CudaError> {
        let spent_s = self.run(work)?;
        Ok((spent_s, spent_s))
    }

    fn words(&mut self, block: Block, count: usize) -> Result<Vec<u32>, CudaError> {
        let mut words = self.read_back(block);
        words.truncate(count);
        Ok(words)
    }

    fn found(&mut self) -> Result<Found, CudaError> {
        Ok(std::mem::take(&mut self.found))
    }

    fn digest(&mut self) -> Result<u64, CudaError> {
        Ok(self.digest)
    }

    fn ticks(&mut self) -> Result<u32, CudaError> {
        Ok(self.ticks)
    }

    fn library(&self, precision: Precision) -> String {
        if precision == Precision::Own { "farrier's kernel" } else { "a simulated library" }
            .to_owned()
    }
}
