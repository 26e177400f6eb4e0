//! Applies the compatibility rules to the frameworks of the active Python.

use crate::check::{self, Verdict};
use crate::node::context::NodeContext;
use crate::node::item_code;
use crate::node::observation::PythonPackage;
use crate::node::reading::Reading;
use crate::node::report::NodeFindings;
use crate::set::FactSet;

/// The packages that are evaluated. The other packages are dependencies of these.
const FRAMEWORKS: [&str; 5] = ["torch", "tensorflow", "jax", "vllm", "tensorrt-llm"];

pub(crate) fn evaluate(node: &NodeContext<'_>, findings: &mut NodeFindings) {
    let python = &node.observation.python;
    let interpreter = python.interpreter.value().map_or("Python", String::as_str);
    let packages = match &python.packages {
        Reading::Value(packages) => packages,
        Reading::Absent => {
            let text = "there is no Python, so there is no framework to check";
            findings.item(Verdict::Ok, item_code::PYTHON_ABSENT, "Python", text, "PATH");
            return;
        }
        Reading::Unreadable(why) => {
            let text =
                format!("the frameworks cannot be read: {why}; name the interpreter with --python");
            findings.item(Verdict::Unknown, item_code::PYTHON_UNKNOWN, "Python", text, interpreter);
            return;
        }
    };
    let frameworks: Vec<&PythonPackage> =
        packages.iter().filter(|package| FRAMEWORKS.contains(&package.name.as_str())).collect();
    if frameworks.is_empty() {
        let text = format!("{interpreter} has none of {}", FRAMEWORKS.join(", "));
        findings.item(Verdict::Ok, item_code::FRAMEWORK_NONE, "Python", text, interpreter);
    }
    for framework in frameworks {
        evaluate_framework(node, framework, packages, findings);
        pinned_libraries(framework, packages, interpreter, findings);
    }
}

fn evaluate_framework(
    node: &NodeContext<'_>,
    framework: &PythonPackage,
    packages: &[PythonPackage],
    findings: &mut NodeFindings,
) {
    let requirement = requirement(node.set, framework, packages);
    let models = node.models();
    let models = models.iter().filter(|model| model.gpu.is_some());
    for model in models {
        match node.query(model, Some(requirement.clone())) {
            Some(Ok(query)) => {
                findings.merge_check(&requirement, |findings| {
                    check::evaluate_software(node.set, &query, findings);
                });
            }
            Some(Err(err)) if err.field == check::Field::Framework => findings.item(
                Verdict::Unknown,
                item_code::FRAMEWORK_NOT_IN_DATA,
                requirement.clone(),
                format!("{requirement} cannot be judged: {}", err.problem),
                "the package's METADATA",
            ),
            // The platform rule reports a driver that is unknown.
            Some(Err(_)) | None => {}
        }
    }
}

/// The framework in the syntax of `--framework`. The CUDA version comes from the wheel's local
/// version or metadata; for jax, from its CUDA plugin.
fn requirement(set: &FactSet, framework: &PythonPackage, packages: &[PythonPackage]) -> String {
    let PythonPackage { name, version, cuda, .. } = framework;
    let has = |name: &str| packages.iter().any(|package| package.name == name);
    if name == "jax" {
        let extra = [("jax-cuda13-plugin", "[cuda13]"), ("jax-cuda12-plugin", "[cuda12]")];
        let extra =
            extra.iter().find(|(plugin, _)| has(plugin)).map_or("[cpu]", |(_, extra)| extra);
        return format!("{name}{extra}=={version}");
    }
    if name != "torch" || version.contains('+') {
        return format!("{name}=={version}");
    }
    let cuda = match cuda {
        Reading::Value(cuda) => cuda,
        Reading::Absent => return format!("{name}=={version}+cpu"),
        Reading::Unreadable(_) => return format!("{name}=={version}"),
    };
    // The wheel from PyPI needs no CUDA tag. A wheel with another CUDA version is from another
    // index and needs a CUDA tag.
    let is_pypi = set.frameworks.builds(name).any(|build| {
        build.version.to_string() == *version
            && build.build == "index"
            && build.cuda.is_some_and(|known| known.to_string() == *cuda)
    });
    if is_pypi {
        return format!("{name}=={version}");
    }
    format!("{name}=={version}+cu{}", cuda.replace('.', ""))
}

/// Compares the CUDA libraries that a wheel pins with the installed ones.
fn pinned_libraries(
    framework: &PythonPackage,
    packages: &[PythonPackage],
    interpreter: &str,
    findings: &mut NodeFindings,
) {
    let mut wrong = Vec::new();
    for (name, pinned) in &framework.pinned {
        let installed = packages.iter().find(|package| package.name == *name);
        if let Some(installed) = installed.filter(|installed| installed.version != *pinned) {
            wrong.push(format!("{name} {} (required: {pinned})", installed.version));
        }
    }
    if wrong.is_empty() {
        return;
    }
    findings.item(
        Verdict::Caveat,
        item_code::FRAMEWORK_PARTS_DIFFER,
        format!("{} {}", framework.name, framework.version),
        format!(
            "{} {} requires other versions of its CUDA libraries than are installed: {}",
            framework.name,
            framework.version,
            wrong.join(", ")
        ),
        format!("METADATA of the packages of {interpreter}"),
    );
}
