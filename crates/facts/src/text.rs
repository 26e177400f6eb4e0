//! Texts for people, abridged.

/// The first sentence of a text, without its full stop, where there is room for no more. Nothing is
/// decided by it.
pub fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_first_full_stop_is_left_out() {
        assert_eq!(first_sentence("The GPU is lost. Reboot the node."), "The GPU is lost");
        assert_eq!(first_sentence("Driver 580.95.05 is old."), "Driver 580.95.05 is old");
        assert_eq!(first_sentence(""), "");
    }
}
