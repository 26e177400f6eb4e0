//! Reports as one HTML page: everything in it, no script, no network, light and dark. Pure.

mod axis;
mod legend;
mod plot;
mod roof;
mod stack;
mod trade;
mod waterfall;

pub(crate) use legend::{Colour, legend};
pub(crate) use plot::{Bar, Line, bars, lines};
pub(crate) use roof::{Roof, Under, mark, roofs};
pub(crate) use stack::{Column, Stack, stack};
pub(crate) use trade::{Place, Trade, trade};
pub(crate) use waterfall::{Fall, Waterfall, waterfall};

const STYLE: &str = include_str!("style.css");
/// What only pages with coloured plots have.
const COLOURS: &str = include_str!("colours.css");

/// The beginning of a page, up to its heading. It ends with `</body>\n</html>\n`.
pub(crate) fn head(title: &str) -> String {
    styled(title, "")
}

/// Likewise, of a page with [`stack`], [`waterfall`], [`roofs`] or [`trade`].
pub(crate) fn head_with_colours(title: &str) -> String {
    styled(title, COLOURS)
}

fn styled(title: &str, further: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}{further}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        title = escape(title)
    )
}

/// Text that is nothing but text in HTML. Control characters, which no HTML may have, are shown as unreadable.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(letter),
            letter if letter.is_control() => safe.push(char::REPLACEMENT_CHARACTER),
            letter => safe.push(letter),
        }
    }
    safe
}
