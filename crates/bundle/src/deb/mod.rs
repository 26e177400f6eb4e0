//! Debian packages: control files, versions, dependencies, and the archive around them.

mod archive;
mod control;
mod package;
mod relation;
mod version;

pub use archive::{DebError, control_of};
pub use control::{ControlFileError, Paragraph, paragraphs};
pub use package::{PackageFieldError, candidate};
pub use relation::{RelationError, dependencies};
pub use version::compare;
