//! A simulated GPU. It does the work of [`GpuBackend`] on the host, in little memory and on a
//! simulated clock. Faults make it slow or its results wrong. Tests run on it as on a real GPU.

mod description;

use std::collections::BTreeMap;

use super::backend::{
    DeviceBuffer, Gemm, GemmPrecision, GpuBackend, GpuInfo, HostBuffer, MemoryMismatch,
    MemoryMismatches, UnsupportedGemm, Work, chain, mix,
};
use super::error::CudaError;
use super::matrix_values;

pub use description::{SimulatedFault, SimulatedGpu};

impl SimulatedGpu {
    /// Opens the GPU for tests, unless one of its faults prevents that.
    pub fn open(self) -> Result<SimulatedDevice, CudaError> {
        let (major, minor) = self.compute_capability;
        if major < 7 {
            let detail =
                format!("compute capability 7.0 is required, this GPU has {major}.{minor}");
            return Err(CudaError::Unavailable { what: "load the kernels", detail });
        }
        let is_gone = |fault: &SimulatedFault| matches!(fault, SimulatedFault::Gone { mark, .. } if mark.exists());
        if self.faults.iter().any(is_gone) {
            return Err(CudaError::CallFailed {
                what: "create a CUDA context",
                detail: ecc_error(),
            });
        }
        let info = GpuInfo {
            name: self.name.clone(),
            compute_capability: self.compute_capability,
            sm_count: self.processors,
            memory_bytes: self.memory_mib << 20,
        };
        Ok(SimulatedDevice {
            gpu: self,
            info,
            buffers: BTreeMap::new(),
            host_buffers: BTreeMap::new(),
            gemms: BTreeMap::new(),
            next: 0,
            done: 0,
            gemms_run: 0,
            clock_s: 0.0,
            mismatches: MemoryMismatches::default(),
            digest: 0,
            launch_count: 0,
        })
    }
}

#[derive(Debug)]
pub struct SimulatedDevice {
    gpu: SimulatedGpu,
    info: GpuInfo,
    buffers: BTreeMap<usize, Vec<u32>>,
    host_buffers: BTreeMap<usize, Vec<u32>>,
    /// GEMMs by id, with the first words of their results.
    gemms: BTreeMap<usize, (GemmPrecision, [u32; 2])>,
    next: usize,
    /// Operations so far. `gemms_run` counts the GEMMs among them.
    done: u32,
    gemms_run: u32,
    clock_s: f64,
    mismatches: MemoryMismatches,
    digest: u64,
    launch_count: u32,
}

impl SimulatedDevice {
    fn share(&self, fault_share: impl Fn(&SimulatedFault) -> Option<f64>) -> f64 {
        self.gpu.faults.iter().filter_map(fault_share).product()
    }

    fn memory_s(&self, bytes: u64) -> f64 {
        let slow = self.share(|fault| match fault {
            SimulatedFault::SlowMemory(share) => Some(*share),
            _ => None,
        });
        seconds(bytes, self.gpu.memory_gb_per_s * slow)
    }

    fn pcie_s(&self, bytes: u64) -> f64 {
        let slow = self.share(|fault| match fault {
            SimulatedFault::SlowPcie(share) => Some(*share),
            _ => None,
        });
        seconds(bytes, self.gpu.pcie_gb_per_s * slow)
    }

    fn gemm_s(&self, precision: GemmPrecision, operations: u64) -> f64 {
        let slow = self.share(|fault| match fault {
            SimulatedFault::SlowGemm(share) => Some(*share),
            SimulatedFault::Fading(left) => Some(left.powf((self.clock_s / 60.0).min(1.0))),
            _ => None,
        });
        let factor = match precision {
            GemmPrecision::Fp8 => 1.9,
            GemmPrecision::Tf32 => 0.5,
            GemmPrecision::Fp64 => 0.07,
            GemmPrecision::OwnKernel => 0.6,
            GemmPrecision::Bf16 | GemmPrecision::Fp16 => 1.0,
        };
        seconds(operations, self.gpu.tflops * factor * slow * 1e3)
    }

    fn used_bytes(&self) -> u64 {
        self.buffers.values().map(|words| words.len() as u64 * 4).sum()
    }

    fn words_mut(&mut self, buffer: DeviceBuffer) -> &mut Vec<u32> {
        self.buffers.entry(buffer.id).or_default()
    }

    /// The words that a read of a buffer returns: those that were written, except for stuck bits.
    fn read_back(&self, buffer: DeviceBuffer) -> Vec<u32> {
        let mut words = self.buffers.get(&buffer.id).cloned().unwrap_or_default();
        for fault in &self.gpu.faults {
            if let SimulatedFault::StuckBit { word, bit } = fault {
                let index = usize::try_from(*word).unwrap_or(usize::MAX);
                if let Some(word) = words.get_mut(index) {
                    *word |= 1 << bit;
                }
            }
        }
        words
    }

    /// Whether an SM gives wrong results now.
    fn is_wrong(&self, processor: u32) -> bool {
        self.gpu.faults.iter().any(|fault| {
            matches!(fault, SimulatedFault::WrongProcessor { processor: bad, after }
                if *bad == processor && self.done > *after)
        })
    }

    /// Does the work. Returns the seconds that a GPU would have taken.
    fn run(&mut self, work: Work) -> Result<f64, CudaError> {
        self.done += 1;
        for fault in &self.gpu.faults {
            match fault {
                SimulatedFault::Lost { after } if self.done > *after => {
                    return Err(CudaError::CallFailed {
                        what: "wait for the GPU",
                        detail: ecc_error(),
                    });
                }
                SimulatedFault::Gone { after, mark } if self.done > *after => {
                    // If the file cannot be created, the fault acts like `Lost`.
                    let _ = std::fs::write(mark, "lost\n");
                    return Err(CudaError::CallFailed {
                        what: "wait for the GPU",
                        detail: ecc_error(),
                    });
                }
                SimulatedFault::UnfitLibrary if self.uses_library(work) => {
                    return Err(CudaError::from_blas("multiply matrices", 8));
                }
                SimulatedFault::Hung { after } if self.done > *after => loop {
                    std::thread::park();
                },
                _ => {}
            }
        }
        let spent_s = match work {
            Work::Fill(buffer, pattern) => {
                for (at, word) in self.words_mut(buffer).iter_mut().enumerate() {
                    *word = pattern.word_at(at as u64);
                }
                self.memory_s(buffer.bytes)
            }
            Work::Check(buffer, pattern) => {
                for (at, found) in self.read_back(buffer).into_iter().enumerate() {
                    let expected = pattern.word_at(at as u64);
                    if found != expected {
                        self.mismatches.count += 1;
                        if self.mismatches.examples.len() < 8 {
                            self.mismatches.examples.push(MemoryMismatch {
                                word: at as u64,
                                expected,
                                found,
                            });
                        }
                    }
                }
                self.memory_s(buffer.bytes)
            }
            Work::Read(buffer) => self.memory_s(buffer.bytes),
            Work::Copy(from, to) | Work::CopyByEngine(from, to) => self.copy(from, to),
            Work::CopyToGpu(host, buffer) => {
                let words = self.host_buffers.get(&host.id).cloned().unwrap_or_default();
                self.words_mut(buffer).copy_from_slice(&words);
                self.pcie_s(buffer.bytes)
            }
            Work::CopyToHost(buffer, host) => {
                let words = self.read_back(buffer);
                self.host_buffers.insert(host.id, words);
                self.pcie_s(buffer.bytes)
            }
            Work::ComputeChains(buffer, rounds) => self.compute_chains(buffer, rounds),
            Work::CheckCompute(sums, sm_ids, rounds) => {
                let whole = (0..256).map(|thread| mix(chain(thread, rounds) ^ thread));
                let sum = whole.fold(0_u32, u32::wrapping_add);
                self.check_compute(sums, sm_ids, sum)
            }
            Work::CheckTensor(sums, sm_ids, rounds) => {
                self.check_compute(sums, sm_ids, mix(rounds))
            }
            Work::Gemm(gemm) => self.run_gemm(gemm),
            Work::Digest(buffer) => {
                let words = self.read_back(buffer);
                self.digest = words
                    .iter()
                    .fold(0, |sum, word| sum.wrapping_mul(31).wrapping_add(u64::from(*word)));
                self.memory_s(buffer.bytes)
            }
            Work::Launches(times) => {
                self.launch_count = self.launch_count.wrapping_add(times);
                f64::from(times) * self.gpu.launch_us.0 * 1e-6
            }
            Work::GraphLaunches(nodes) => {
                self.launch_count = self.launch_count.wrapping_add(nodes);
                f64::from(nodes) * self.gpu.launch_us.1 * 1e-6
            }
        };
        self.clock_s += spent_s;
        Ok(spent_s)
    }

    fn uses_library(&self, work: Work) -> bool {
        let Work::Gemm(gemm) = work else { return false };
        self.gemms
            .get(&gemm.id)
            .is_some_and(|(precision, _)| *precision != GemmPrecision::OwnKernel)
    }

    fn copy(&mut self, from: DeviceBuffer, to: DeviceBuffer) -> f64 {
        let words = self.read_back(from);
        let both_here = is_here(from) && is_here(to);
        self.words_mut(to).copy_from_slice(&words);
        let bytes = from.bytes.min(to.bytes);
        if both_here { self.memory_s(2 * bytes) } else { seconds(bytes, self.gpu.peer_gb_per_s) }
    }

    fn compute_chains(&mut self, buffer: DeviceBuffer, rounds: u32) -> f64 {
        let processors = self.gpu.processors.max(1);
        let bad: Vec<bool> = (0..processors).map(|processor| self.is_wrong(processor)).collect();
        for (at, word) in (0_u32..).zip(self.words_mut(buffer).iter_mut()) {
            let is_bad = bad[(at / 2048 % processors) as usize];
            *word = chain(at, rounds) ^ u32::from(is_bad);
        }
        1e-4
    }

    fn check_compute(&mut self, sums: DeviceBuffer, sm_ids: DeviceBuffer, sum: u32) -> f64 {
        let processors = self.gpu.processors.max(1);
        let bad: Vec<bool> = (0..processors).map(|processor| self.is_wrong(processor)).collect();
        for (at, word) in (0_u32..).zip(self.words_mut(sums).iter_mut()) {
            *word = sum ^ u32::from(bad[(at % processors) as usize]);
        }
        let few = self.gpu.faults.iter().find_map(|fault| match fault {
            SimulatedFault::FewProcessors(count) => Some((*count).max(1)),
            _ => None,
        });
        for (at, word) in (0_u32..).zip(self.words_mut(sm_ids).iter_mut()) {
            *word = at % few.unwrap_or(processors);
        }
        0.05
    }

    fn run_gemm(&mut self, gemm: Gemm) -> f64 {
        self.gemms_run += 1;
        let Some((precision, words)) = self.gemms.get(&gemm.id).copied() else { return 0.0 };
        let is_wrong = self.gpu.faults.iter().any(
            |fault| matches!(fault, SimulatedFault::WrongGemm { after } if self.gemms_run > *after),
        );
        let result = self.words_mut(gemm.result);
        for (slot, word) in result.iter_mut().zip(words) {
            *slot = word;
        }
        if let Some(last) = result.last_mut() {
            *last = u32::from(is_wrong);
        }
        self.gemm_s(precision, gemm.operations())
    }
}

fn ecc_error() -> String {
    "CUDA_ERROR_ECC_UNCORRECTABLE, simulated".to_owned()
}

/// Buffers with ids above this one are on a peer.
const PEER: usize = 1 << 32;

fn is_here(buffer: DeviceBuffer) -> bool {
    buffer.id < PEER
}

fn seconds(amount: u64, giga_per_s: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "amounts of a test fit 52 bits")]
    let amount = amount as f64;
    amount / (giga_per_s * 1e9)
}

fn word_count(bytes: u64) -> usize {
    usize::try_from(bytes / 4).unwrap_or(usize::MAX)
}

impl GpuBackend for SimulatedDevice {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let full = self.gpu.faults.iter().find_map(|fault| match fault {
            SimulatedFault::Full { left_mib } => Some(left_mib << 20),
            _ => None,
        });
        let all = full.unwrap_or(self.gpu.memory_mib << 20);
        Ok(all.saturating_sub(self.used_bytes()))
    }

    fn allocate(&mut self, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        if bytes > self.free_bytes()? {
            return Err(CudaError::OutOfMemory);
        }
        self.next += 1;
        self.buffers.insert(self.next, vec![0; word_count(bytes)]);
        Ok(DeviceBuffer { id: self.next, bytes })
    }

    fn free(&mut self, buffer: DeviceBuffer) -> Result<(), CudaError> {
        self.buffers.remove(&buffer.id);
        Ok(())
    }

    fn allocate_host(&mut self, bytes: u64) -> Result<HostBuffer, CudaError> {
        if self.gpu.faults.contains(&SimulatedFault::NoPinnedMemory) {
            let detail = "CUDA_ERROR_OUT_OF_MEMORY, simulated".to_owned();
            return Err(CudaError::Unavailable { what: "allocate pinned memory", detail });
        }
        self.next += 1;
        self.host_buffers.insert(self.next, vec![0; word_count(bytes)]);
        Ok(HostBuffer { id: self.next, bytes })
    }

    fn free_host(&mut self, buffer: HostBuffer) -> Result<(), CudaError> {
        self.host_buffers.remove(&buffer.id);
        Ok(())
    }

    fn peers(&self) -> Vec<String> {
        (1..=self.gpu.peers).map(|peer| format!("{} {peer}", self.gpu.name)).collect()
    }

    fn allocate_peer(&mut self, _peer: usize, bytes: u64) -> Result<DeviceBuffer, CudaError> {
        self.next += 1;
        let id = PEER + self.next;
        self.buffers.insert(id, vec![0; word_count(bytes)]);
        Ok(DeviceBuffer { id, bytes })
    }

    fn prepare_gemm(
        &mut self,
        precision: GemmPrecision,
        side: u64,
    ) -> Result<Result<Gemm, UnsupportedGemm>, CudaError> {
        if let Some(unsupported) = precision.unsupported_on(self.gpu.compute_capability) {
            return Ok(Err(unsupported));
        }
        if !self.gpu.has_library && precision != GemmPrecision::OwnKernel {
            return Ok(Err(UnsupportedGemm::on_this_machine(
                "no libcublasLt was found".to_owned(),
            )));
        }
        // The simulated GPU multiplies no values. The result holds the expected first value, and a
        // last word that changes the digest if the result is wrong.
        let result = self.allocate(64)?;
        self.next += 1;
        let (first, _) = matrix_values::expected_first(precision, side);
        self.gemms.insert(self.next, (precision, matrix_values::encode_first(precision, first)));
        Ok(Ok(Gemm { id: self.next, side, result }))
    }

    fn release_gemm(&mut self, gemm: Gemm) -> Result<(), CudaError> {
        self.gemms.remove(&gemm.id);
        self.free(gemm.result)
    }

    fn run_timed(&mut self, work: &[Work]) -> Result<f64, CudaError> {
        work.iter().map(|work| self.run(*work)).sum()
    }

    fn submit_timed(&mut self, work: Work) -> Result<(f64, f64), CudaError> {
        let spent_s = self.run(work)?;
        Ok((spent_s, spent_s))
    }

    fn read_words(&mut self, buffer: DeviceBuffer, count: usize) -> Result<Vec<u32>, CudaError> {
        let mut words = self.read_back(buffer);
        words.truncate(count);
        Ok(words)
    }

    fn take_mismatches(&mut self) -> Result<MemoryMismatches, CudaError> {
        Ok(std::mem::take(&mut self.mismatches))
    }

    fn digest(&mut self) -> Result<u64, CudaError> {
        Ok(self.digest)
    }

    fn launch_count(&mut self) -> Result<u32, CudaError> {
        Ok(self.launch_count)
    }

    fn gemm_library(&self, precision: GemmPrecision) -> String {
        if precision == GemmPrecision::OwnKernel {
            "farrier's kernel"
        } else {
            "a simulated library"
        }
        .to_owned()
    }
}
