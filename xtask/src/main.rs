//! What a developer of Farrier runs besides cargo itself.

use anyhow::Context;

pub mod bench_log;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("bench-log") => {
            let bytes = args.next().context("usage: cargo xtask bench-log BYTES > FILE")?;
            let bytes =
                bytes.parse().with_context(|| format!("`{bytes}` is not a size in bytes"))?;
            bench_log::write(std::io::stdout().lock(), bytes).context("failed to write the log")
        }
        _ => anyhow::bail!("usage: cargo xtask bench-log BYTES > FILE"),
    }
}
