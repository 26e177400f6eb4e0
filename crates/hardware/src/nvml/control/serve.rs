//! The child: answers a line with a line until there are no more.

use std::ffi::OsStr;
use std::io::{self, BufRead, Write};

use crate::nvml::caller::{Caller, call};
use crate::nvml::ffi;

use super::{Answer, Request};

/// Answers requests until the input ends or the library cannot be asked.
pub fn serve(library: &OsStr, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut before = |_: &str| {};
    let mut caller = match Caller::load(library, &mut before) {
        Ok(caller) => caller,
        Err(why) => return say(output, &Answer::Silent(format!("no NVML library: {why}"))),
    };
    if let Some(why) = caller.start().and_then(|refusal| refusal.failure_reason()) {
        return say(output, &Answer::Silent(why));
    }
    let mut line = String::new();
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            let _ = call!(caller, ffi::Init, "nvmlShutdown");
            return Ok(());
        }
        let answer = match serde_json::from_str(&line)? {
            Request::List => Answer::Gpus(caller.all_controls()),
            Request::Get { uuid, control } => Answer::Value(caller.get_control(&uuid, control)),
            Request::InForce { uuid, control } => Answer::Value(caller.in_force(&uuid, control)),
            Request::Set { uuid, control, value } => caller
                .set_control(&uuid, control, &value)
                .map_or_else(Answer::Refused, |()| Answer::Done),
        };
        say(output, &answer)?;
    }
}

fn say(output: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    output.write_all(&text)?;
    output.flush()
}
