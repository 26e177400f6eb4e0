//! Shortening of display texts.

/// The first sentence of a text without its full stop, for displays with little room. For display
/// only: no decision depends on it.
pub fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_only_the_first_sentence() {
        assert_eq!(first_sentence("The GPU is lost. Reboot the node."), "The GPU is lost");
        assert_eq!(first_sentence("Driver 580.95.05 is old."), "Driver 580.95.05 is old");
        assert_eq!(first_sentence(""), "");
    }
}
