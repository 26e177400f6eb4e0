//! The filters of templates. Each limits the size of its arguments and of its result, and all
//! together what they work on, so that no chain of filters grows a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, tests};

/// Largest argument and result of a filter. All nodes of a notification are smaller.
const SIZE_MAX: usize = 64 << 10;

/// What all filters of a rendering may read and write.
const WORK_MAX: usize = 8 << 20;

/// What a value without text counts.
const SCALAR_SIZE: usize = 8;

/// Adds the filters and tests that a template may use. `map` and `select` call them by their name
/// in a text, so that the others must not exist.
pub(super) fn add(environment: &mut Environment<'_>) {
    let work = Arc::new(AtomicUsize::new(0));
    for (name, filter) in allowed() {
        let work = Arc::clone(&work);
        let limited = move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments: Vec<Value> =
                arguments.0.into_iter().map(ValueOrKwargs::into_value).collect();
            let sizes: Vec<usize> = arguments.iter().map(size).collect::<Result<_, _>>()?;
            charge(&work, sizes.iter().sum())?;
            check_product(name, &arguments, &sizes)?;
            let result = filter.call(state, &arguments)?;
            charge(&work, size(&result)?)?;
            Ok::<_, Error>(result)
        };
        environment.add_filter(name, limited);
    }
    add_tests(environment);
}

fn allowed() -> Vec<(&'static str, Value)> {
    vec![
        ("abs", Value::from_function(filters::abs)),
        ("attr", Value::from_function(filters::attr)),
        ("bool", Value::from_function(filters::bool)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("count", Value::from_function(filters::length)),
        ("d", Value::from_function(filters::default)),
        ("default", Value::from_function(filters::default)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("first", Value::from_function(filters::first)),
        ("float", Value::from_function(filters::float)),
        ("groupby", Value::from_function(filters::groupby)),
        ("int", Value::from_function(filters::int)),
        ("join", Value::from_function(filters::join)),
        ("last", Value::from_function(filters::last)),
        ("length", Value::from_function(filters::length)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("replace", Value::from_function(filters::replace)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("split", Value::from_function(filters::split)),
        ("string", Value::from_function(filters::string)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("tojson", Value::from_function(tojson)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ]
}

/// Without an argument: it would be an indentation of any width.
fn tojson(value: &Value) -> Result<Value, Error> {
    filters::tojson(value, None, Kwargs::from_iter(Vec::<(String, Value)>::new()))
}

fn add_tests(environment: &mut Environment<'_>) {
    environment.add_test("defined", tests::is_defined);
    environment.add_test("undefined", tests::is_undefined);
    environment.add_test("none", tests::is_none);
    environment.add_test("string", tests::is_string);
    environment.add_test("number", tests::is_number);
    environment.add_test("true", tests::is_true);
    environment.add_test("false", tests::is_false);
    environment.add_test("odd", tests::is_odd);
    environment.add_test("even", tests::is_even);
    environment.add_test("divisibleby", tests::is_divisibleby);
    environment.add_test("startingwith", tests::is_startingwith);
    environment.add_test("endingwith", tests::is_endingwith);
    environment.add_test("in", tests::is_in);
    environment.add_test("eq", tests::is_eq);
    environment.add_test("equalto", tests::is_eq);
    environment.add_test("==", tests::is_eq);
    environment.add_test("ne", tests::is_ne);
    environment.add_test("!=", tests::is_ne);
    environment.add_test("lt", tests::is_lt);
    environment.add_test("<", tests::is_lt);
    environment.add_test("le", tests::is_le);
    environment.add_test("<=", tests::is_le);
    environment.add_test("gt", tests::is_gt);
    environment.add_test(">", tests::is_gt);
    environment.add_test("ge", tests::is_ge);
    environment.add_test(">=", tests::is_ge);
}

fn too_large() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a filter works on too much text")
}

/// Adds to what the filters of this rendering have read and written.
fn charge(work: &AtomicUsize, bytes: usize) -> Result<(), Error> {
    let before = work.fetch_add(bytes + SCALAR_SIZE, Ordering::Relaxed);
    if before + bytes > WORK_MAX { Err(too_large()) } else { Ok(()) }
}

/// `join` and `replace` insert a text many times.
fn check_product(name: &str, arguments: &[Value], sizes: &[usize]) -> Result<(), Error> {
    let inserted: usize = sizes.iter().skip(1).sum();
    let times = match (name, arguments) {
        ("join", [list, ..]) => list.len().unwrap_or(0).max(text_chars(list)),
        ("replace", [text, ..]) => text_chars(text) + 1,
        _ => return Ok(()),
    };
    if times.saturating_mul(inserted) > SIZE_MAX { Err(too_large()) } else { Ok(()) }
}

fn text_chars(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.chars().count())
}

/// The size of a value, with all its elements. An error if it is more than [`SIZE_MAX`].
fn size(value: &Value) -> Result<usize, Error> {
    let mut left = SIZE_MAX;
    take_size(value, &mut left, 0)?;
    Ok(SIZE_MAX - left)
}

fn take_size(value: &Value, left: &mut usize, depth: usize) -> Result<(), Error> {
    let own = SCALAR_SIZE + value.as_str().map_or(0, str::len);
    *left = left.checked_sub(own).filter(|_| depth < 16).ok_or_else(too_large)?;
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    for element in value.try_iter()? {
        take_size(&element, left, depth + 1)?;
        if value.kind() == ValueKind::Map {
            take_size(&value.get_item(&element)?, left, depth + 1)?;
        }
    }
    Ok(())
}
