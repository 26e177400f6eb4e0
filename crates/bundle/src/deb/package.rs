//! A package as the resolver reads it, from an entry of an index or from a control file.

use super::control::Paragraph;
use super::relation::{RelationError, dependencies};
use crate::closure::{Constraint, PackageCandidate, PackageFile, Provide};

#[derive(Debug, thiserror::Error)]
pub enum PackageFieldError {
    #[error("package `{package}` has no field `{field}`")]
    Missing { package: String, field: &'static str },
    #[error("the field `{field}` of package `{package}` cannot be read")]
    Relation {
        package: String,
        field: &'static str,
        #[source]
        err: RelationError,
    },
}

/// Reads a paragraph. `file` says where the bytes of the package are.
pub fn candidate(
    paragraph: &Paragraph,
    file: PackageFile,
) -> Result<PackageCandidate, PackageFieldError> {
    let name = paragraph.text("Package").to_owned();
    let required = |field: &'static str| match paragraph.get(field) {
        Some(value) if !value.is_empty() => Ok(value.to_owned()),
        _ => Err(PackageFieldError::Missing { package: name.clone(), field }),
    };
    required("Package")?;
    let version = required("Version")?;
    let architecture = required("Architecture")?;
    let relations = |field: &'static str| {
        dependencies(paragraph.text(field), &architecture)
            .map_err(|err| PackageFieldError::Relation { package: name.clone(), field, err })
    };
    let mut depends = relations("Pre-Depends")?;
    depends.extend(relations("Depends")?);
    let mut conflicts = relations("Conflicts")?;
    conflicts.extend(relations("Breaks")?);
    let provides = relations("Provides")?.into_iter().flatten();
    let provides = provides.map(|relation| Provide {
        name: relation.name,
        version: relation.constraint.map(|Constraint { version, .. }| version),
    });
    Ok(PackageCandidate {
        provides: provides.collect(),
        depends,
        conflicts: conflicts.into_iter().flatten().collect(),
        name,
        version,
        architecture,
        file,
    })
}
