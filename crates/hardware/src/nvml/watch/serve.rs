//! The watch child: writes one response line per request until its input ends.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::io::{self, BufRead, Write};

use crate::clock;
use crate::nvml::caller::NvmlCaller;

use super::call_timer::CallTimer;
use super::current_call::CurrentCall;
use super::session::ProbeSession;
use super::wire::{InventoryRequest, WatchRequest, WatchResponse, WireUnavailable};

/// Serves requests until the input ends, the library fails or the output is closed. After an error
/// the process must exit, because only a new process loads a library that was replaced.
pub fn serve(library: &OsStr, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let current_gpu = Cell::new(None);
    let current_call = CurrentCall::on_stderr();
    let timer = RefCell::new(CallTimer::default());
    let mut on_call = |call: &str| {
        current_call.write(call, current_gpu.get());
        timer.borrow_mut().begin(call, current_gpu.get());
    };
    let mut caller = Some(&mut on_call as &mut dyn FnMut(&str));
    let mut session: Option<ProbeSession<'_>> = None;
    let mut cpu_us_reported = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let request = WatchRequest::parse(&line)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "unknown request"))?;
        let mut response = WatchResponse::empty();
        timer.borrow_mut().start_request();
        if let Some(on_call) = caller.take() {
            match start(library, on_call, &current_gpu, &request) {
                Ok(started) => session = Some(started),
                Err(unavailable) => response.unavailable = Some(unavailable),
            }
        }
        if let Some(session) = &mut session {
            let outcome = match &request {
                WatchRequest::Inventory(_) => {
                    session.inventory(&mut response);
                    Ok(())
                }
                WatchRequest::Values(tier) => session.values(*tier, &mut response),
            };
            if let Err(unavailable) = outcome {
                response =
                    WatchResponse { unavailable: Some(unavailable), ..WatchResponse::empty() };
            }
        }
        current_call.write("no call", None);
        timer.borrow_mut().end();
        response.slow_calls = timer.borrow_mut().take_slow();
        let cpu_us = clock::process_cpu_us();
        response.cpu_us = cpu_us.saturating_sub(cpu_us_reported);
        cpu_us_reported = cpu_us;
        let mut text = serde_json::to_vec(&response)?;
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()?;
        if response.unavailable.is_some() {
            return Ok(());
        }
    }
}

fn start<'a>(
    library: &OsStr,
    on_call: &'a mut dyn FnMut(&str),
    current_gpu: &'a Cell<Option<u32>>,
    request: &WatchRequest,
) -> Result<ProbeSession<'a>, WireUnavailable> {
    let caller = NvmlCaller::load(library, on_call)
        .map_err(|err| WireUnavailable::NoLibrary(err.to_string()))?;
    let inventory = match request {
        WatchRequest::Inventory(inventory) => inventory.clone(),
        WatchRequest::Values(_) => InventoryRequest::default(),
    };
    ProbeSession::start(caller, current_gpu, inventory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(library: &str, input: &str) -> (io::Result<()>, Vec<WatchResponse>) {
        let mut output = Vec::new();
        let served = serve(OsStr::new(library), &mut input.as_bytes(), &mut output);
        let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        (served, lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    #[test]
    fn missing_library_ends_the_session() {
        for library in ["/nonexistent/libnvidia-ml.so.1", "libc.so.6"] {
            let (served, responses) = responses(library, "inventory\nfast\n");
            assert!(served.is_ok());
            assert_eq!(responses.len(), 1);
            assert!(
                matches!(responses[0].unavailable, Some(WireUnavailable::NoLibrary(_))),
                "{responses:?}"
            );
        }
    }

    #[test]
    fn unknown_request_is_rejected() {
        let (served, responses) = responses("/nonexistent/libnvidia-ml.so.1", "unknown\n");
        assert!(served.is_err());
        assert_eq!(responses, []);
        let (served, responses) = self::responses("/nonexistent/libnvidia-ml.so.1", "");
        assert!(served.is_ok() && responses.is_empty());
    }
}
