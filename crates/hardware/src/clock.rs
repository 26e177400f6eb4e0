//! Clocks that the standard library does not offer.

/// Milliseconds since boot, including suspend (`CLOCK_BOOTTIME`). Changes of the wall clock do not
/// affect it. Rules measure their windows on this clock.
pub fn since_boot_ms() -> i64 {
    read_ns(libc::CLOCK_BOOTTIME) / 1_000_000
}

/// CPU time of this process over all threads, in microseconds.
pub fn process_cpu_us() -> u64 {
    u64::try_from(read_ns(libc::CLOCK_PROCESS_CPUTIME_ID) / 1000).unwrap_or(0)
}

/// CPU time of this thread, in microseconds.
pub fn thread_cpu_us() -> u64 {
    u64::try_from(read_ns(libc::CLOCK_THREAD_CPUTIME_ID) / 1000).unwrap_or(0)
}

fn read_ns(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid `timespec` for the call to fill. All of these clocks exist since
    // Linux 2.6.39, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_monotonic() {
        let (boot, cpu) = (since_boot_ms(), process_cpu_us());
        assert!(boot > 0);
        let mut sum = 0_u64;
        while process_cpu_us() == cpu {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(since_boot_ms() >= boot);
    }
}
