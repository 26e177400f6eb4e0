//! The protocol of the guest's agent (`guest/agent.pl`), without IO.

use anyhow::{Context, bail};

/// What the agent sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The agent has started: the guest has booted.
    Hello {
        boot_id: String,
    },
    Output {
        job: u64,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Exit {
        job: u64,
        code: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// The request to run a command.
pub(crate) fn run_request(job: u64, argv: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut arguments = Vec::new();
    for argument in argv {
        if argument.is_empty() || argument.contains('\0') {
            bail!("the agent takes no argument that is empty or contains NUL: {argv:?}");
        }
        arguments.extend_from_slice(argument.as_bytes());
        arguments.push(0);
    }
    let mut request = format!("run {job} {}\n", arguments.len()).into_bytes();
    request.extend_from_slice(&arguments);
    Ok(request)
}

/// Splits the agent's bytes into frames.
#[derive(Default)]
pub(crate) struct FrameReader {
    pending: Vec<u8>,
}

impl FrameReader {
    /// The frames that these bytes complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> anyhow::Result<Vec<Frame>> {
        self.pending.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some((frame, length)) = parse(&self.pending)? {
            self.pending.drain(..length);
            frames.push(frame);
        }
        Ok(frames)
    }
}

/// The first frame and its length in bytes, or `None` if it is not complete.
fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Frame, usize)>> {
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
        if bytes.len() > 200 {
            bail!("the guest's agent sent no line end in {} bytes", bytes.len());
        }
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end]).context("a header of the guest's agent")?;
    let body = &bytes[end + 1..];
    let frame = match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["hello", boot_id] => Frame::Hello { boot_id: (*boot_id).to_owned() },
        ["exit", job, code] => Frame::Exit { job: job.parse()?, code: code.parse()? },
        [name @ ("out" | "err"), job, length] => {
            let length: usize = length.parse()?;
            let Some(output) = body.get(..length) else { return Ok(None) };
            let stream = if *name == "out" { Stream::Stdout } else { Stream::Stderr };
            let frame = Frame::Output { job: job.parse()?, stream, bytes: output.to_vec() };
            return Ok(Some((frame, end + 1 + length)));
        }
        _ => bail!("unknown frame of the guest's agent: `{line}`"),
    };
    Ok(Some((frame, end + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_each_argument_with_nul() {
        assert_eq!(run_request(7, &["echo", "a b"]).unwrap(), b"run 7 9\necho\0a b\0");
        run_request(7, &["echo", ""]).unwrap_err();
        run_request(7, &["a\0b"]).unwrap_err();
    }

    #[test]
    fn frames_are_read_whatever_the_size_of_the_reads() {
        let bytes = b"hello 1f\nout 1 4\na\nb\0err 1 2\nxyexit 1 137\n";
        let expected = vec![
            Frame::Hello { boot_id: "1f".into() },
            Frame::Output { job: 1, stream: Stream::Stdout, bytes: b"a\nb\0".to_vec() },
            Frame::Output { job: 1, stream: Stream::Stderr, bytes: b"xy".to_vec() },
            Frame::Exit { job: 1, code: 137 },
        ];
        for size in [1, 3, 7, bytes.len()] {
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            for part in bytes.chunks(size) {
                frames.extend(reader.push(part).unwrap());
            }
            assert_eq!(frames, expected, "reads of {size} bytes");
        }
    }

    #[test]
    fn an_unknown_frame_is_an_error() {
        FrameReader::default().push(b"what 1\n").unwrap_err();
        FrameReader::default().push(&[b'x'; 300]).unwrap_err();
    }
}
