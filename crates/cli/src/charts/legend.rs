//! Chart colours and legends. Pure.

use super::escape;

/// One of nine colours that colour-blind readers can tell apart, in light and dark mode: Paul Tol's
/// "muted" scheme (<https://sronpersonalpages.nl/~pault/>), and a grey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Indigo,
    Cyan,
    Teal,
    Green,
    Sand,
    Olive,
    Rose,
    Purple,
    /// For amounts that belong to no category.
    Grey,
}

impl Colour {
    /// CSS class.
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

/// Draws a legend with the entries in the given order.
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
