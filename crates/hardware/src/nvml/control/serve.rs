//! The control child: writes one response line per request until its input ends.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};

use crate::nvml::caller::{NvmlCaller, call};
use crate::nvml::ffi;

use super::{ControlRequest, ControlResponse};

/// Serves requests until the input ends or NVML becomes unavailable.
pub fn serve(library: &OsStr, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut on_call = |_: &str| {};
    let mut caller = match NvmlCaller::load(library, &mut on_call) {
        Ok(caller) => caller,
        Err(why) => {
            return respond(output, &ControlResponse::NoNvml(format!("no NVML library: {why}")));
        }
    };
    if let Some(why) = caller.init().and_then(|refusal| refusal.failure_reason()) {
        return respond(output, &ControlResponse::NoNvml(why));
    }
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            let _ = call!(caller, ffi::Init, "nvmlShutdown");
            return Ok(());
        }
        let response = match serde_json::from_str(&line)? {
            ControlRequest::List => ControlResponse::Gpus(caller.all_controls()),
            ControlRequest::Get { uuid, control } => {
                ControlResponse::Value(caller.get_control(&uuid, control))
            }
            ControlRequest::InForce { uuid, control } => {
                ControlResponse::Value(caller.in_force(&uuid, control))
            }
            ControlRequest::Set { uuid, control, value } => caller
                .set_control(&uuid, control, &value)
                .map_or_else(ControlResponse::Refused, |()| ControlResponse::Done),
        };
        respond(output, &response)?;
    }
}

fn respond(output: &mut dyn Write, response: &ControlResponse) -> io::Result<()> {
    let mut text = serde_json::to_vec(response)?;
    text.push(b'\n');
    output.write_all(&text)?;
    output.flush()
}
