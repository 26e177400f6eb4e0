//! What a plot's colours mean. Pure.

use super::escape;

/// One of nine colours that people with any sight tell apart, by light and by dark: Paul Tol's
/// scheme "muted" (<https://sronpersonalpages.nl/~pault/>), and a grey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Indigo.
    Indigo,
    /// Cyan.
    Cyan,
    /// Teal.
    Teal,
    /// Green.
    Green,
    /// Sand.
    Sand,
    /// Olive.
    Olive,
    /// Rose.
    Rose,
    /// Purple.
    Purple,
    /// Grey, for what is nobody's.
    Grey,
}

impl Colour {
    /// Its class in the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Indigo => "c1",
            Self::Cyan => "c2",
            Self::Teal => "c3",
            Self::Green => "c4",
            Self::Sand => "c5",
            Self::Olive => "c6",
            Self::Rose => "c7",
            Self::Purple => "c8",
            Self::Grey => "c9",
        }
    }
}

/// Colours and their names, in the order of the plot.
pub(crate) fn legend<'a>(entries: impl IntoIterator<Item = (Colour, &'a str)>) -> String {
    let mut html = "<ul class=\"legend\">".to_owned();
    for (colour, name) in entries {
        html.push_str(&format!(
            "<li><i class=\"swatch {}\"></i>{}</li>",
            colour.class(),
            escape(name)
        ));
    }
    html.push_str("</ul>\n");
    html
}
