//! Counts the steps of scanners in tests, to detect scanners whose work grows faster than the text.
//!
//! Unlike wall-clock time, step counts do not depend on machine load.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one iteration of a loop over the text, its words or its lines.
#[inline]
pub(super) fn step() {
    steps(1);
}

/// Counts several iterations.
#[inline]
pub(super) fn steps(count: usize) {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get().saturating_add(count as u64)));
    #[cfg(not(test))]
    let _ = count;
}

#[cfg(test)]
mod tests {
    use super::STEPS;
    use crate::FactSet;
    use crate::lint::{Language, lint};

    /// Texts that, when repeated many times, could take a scanner quadratic time.
    const PIECES: [&str; 66] = [
        "(",
        ")",
        "[{(",
        "\"",
        "'''",
        "$(",
        "`",
        "${",
        "<(",
        "x=$(",
        "\"$(",
        "\"`",
        "`a`",
        "\\\n",
        "a.b(",
        "f'{",
        "f\"{\"",
        "- ",
        "- - ",
        "<<E\n",
        "<<-A <<-B\n",
        "{**os.environ,",
        "if x:\n",
        "sudo ",
        ": ",
        "key:\n",
        "a: {",
        "x: [",
        "torch.compile(options={",
        "env = {",
        "x['a']",
        "except RuntimeError:\n",
        "except torch.OutOfMemoryError: pass\n",
        "try:\n",
        "for x in y: ",
        "torch.cuda.empty_cache()\n",
        "float(cuda_version,",
        "float(",
        "lambda:",
        "ENV A=b\\\n",
        "RUN <<E\n",
        "RUN ",
        "ONBUILD ",
        " \\\n#\n",
        "NCCL_SOCKET_IFNAMX=1 ",
        "bc|",
        "awk|",
        "! <a ",
        "[[ $A < 1.2 ]] ",
        "a | ",
        "echo \"12.8 550.54.15\"|",
        "nvidia-smi -pl 400 # H100 max\n",
        "srun env A=b ",
        "python -c \"",
        "bash -c '",
        "- |\n",
        "- run: |\n   a\n",
        "import keras\nx.save()\n",
        "import tensorrt_llm.builder\n",
        "env:\n - name: A\n",
        "- {name: A, value: b}\n",
        "o = {\"A\": 1}\nf(env=o)\n",
        "torch.compile(mode=\"a\", options={\"a\": 1})\n",
        "!a\n",
        "%env A=b\n",
        "PYTORCH_ALLOC_CONF=a=b,c:d,\n",
    ];

    fn steps_of(language: Language, text: &str) -> u64 {
        STEPS.with(|steps| steps.set(0));
        let _ = lint(&FactSet::embedded().settings, language, text);
        STEPS.with(std::cell::Cell::get)
    }

    #[test]
    fn work_is_linear_in_text_length() {
        const SHORT: usize = 4096;
        let mut counted = 0;
        for piece in PIECES {
            for language in Language::ALL {
                let steps = |bytes: usize| steps_of(language, &piece.repeat(bytes / piece.len()));
                let (short, long) = (steps(SHORT), steps(4 * SHORT));
                // For four times the text, a quadratic scanner would need 16 times the steps.
                assert!(long <= 6 * short + 1000, "{language}, {piece:?}: {short}, then {long}");
                counted += long;
            }
        }
        assert!(counted > 0, "no steps were counted");
    }

    #[test]
    fn named_dictionary_is_not_rescanned_for_every_call() {
        let steps = |count: usize| {
            let entries = "\"A\": 1, ".repeat(count);
            let text = format!("o = {{{entries}}}\n{}", "f(env=o)\n".repeat(count));
            steps_of(Language::Python, &text)
        };
        let (short, long) = (steps(1000), steps(4000));
        assert!(long <= 6 * short, "{short}, then {long}");
    }
}
