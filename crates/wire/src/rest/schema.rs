//! JSON schemas for OpenAPI 3.1.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// A type with a JSON schema.
pub trait Schema {
    /// Name in the document. `None` inlines the schema.
    const NAME: Option<&'static str> = None;
    /// Whether the field may be omitted.
    const IS_OPTIONAL: bool = false;

    fn shape(shapes: &mut Schemas) -> Value;
}

/// Named schemas, once each.
#[derive(Debug, Default)]
pub struct Schemas {
    named: BTreeMap<&'static str, Value>,
}

impl Schemas {
    /// Schema of a type: a reference if it has a name.
    pub fn of<T: Schema>(&mut self) -> Value {
        let Some(name) = T::NAME else { return T::shape(self) };
        if !self.named.contains_key(name) {
            // Reserve the name first, for recursive types.
            self.named.insert(name, Value::Null);
            let shape = T::shape(self);
            self.named.insert(name, shape);
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    pub fn finish(self) -> Map<String, Value> {
        self.named.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect()
    }
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) about: String,
    pub(super) shape: Value,
    pub(super) is_optional: bool,
}

/// An object with these fields; a strict one allows no others.
pub(super) fn object(about: &str, is_strict: bool, fields: &[Field]) -> Value {
    let required: Vec<&str> =
        fields.iter().filter(|it| !it.is_optional).map(|it| it.name).collect();
    let mut properties = Map::new();
    for Field { name, about, shape, .. } in fields {
        let mut shape = shape.clone();
        if let (Some(shape), false) = (shape.as_object_mut(), about.is_empty()) {
            shape.insert("description".to_owned(), json!(about));
        }
        properties.insert((*name).to_owned(), shape);
    }
    let mut object = json!({ "type": "object", "description": about, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if is_strict {
        object["additionalProperties"] = json!(false);
    }
    object
}

/// Defines a type whose JSON is an object, with its schema. Doc comments become descriptions.
/// `strict` types are parsed from requests and allow no other fields.
macro_rules! view {
    (strict $($rest:tt)*) => {
        view!(@ true, [#[serde(deny_unknown_fields)]] $($rest)*);
    };
    (lenient $($rest:tt)*) => {
        view!(@ false, [] $($rest)*);
    };
    (@ $strict:literal, [$($serde:tt)*] $(#[doc = $about:literal])* $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty,)*
    }) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        $($serde)*
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $crate::rest::Schema for $name {
            const NAME: Option<&'static str> = Some(stringify!($name));

            fn shape(_shapes: &mut $crate::rest::Schemas) -> serde_json::Value {
                let fields = [$($crate::rest::schema::Field {
                    name: stringify!($field),
                    about: concat!($($doc,)* "").trim().to_owned(),
                    shape: _shapes.of::<$type>(),
                    is_optional: <$type as $crate::rest::Schema>::IS_OPTIONAL,
                }),*];
                let about = concat!($($about,)* "").trim();
                $crate::rest::schema::object(about, $strict, &fields)
            }
        }
    };
}
pub(super) use view;

impl<T: Schema> Schema for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn shape(shapes: &mut Schemas) -> Value {
        json!({ "anyOf": [shapes.of::<T>(), { "type": "null" }] })
    }
}

impl<T: Schema> Schema for Vec<T> {
    fn shape(shapes: &mut Schemas) -> Value {
        json!({ "type": "array", "items": shapes.of::<T>() })
    }
}

impl<T: Schema> Schema for Box<T> {
    const NAME: Option<&'static str> = T::NAME;

    fn shape(shapes: &mut Schemas) -> Value {
        T::shape(shapes)
    }
}

/// Schemas of types without dependencies.
macro_rules! plain {
    ($($type:ty => $shape:tt,)*) => {
        $(impl $crate::rest::Schema for $type {
            fn shape(_: &mut $crate::rest::Schemas) -> serde_json::Value {
                serde_json::json!($shape)
            }
        })*
    };
}
pub(super) use plain;

plain! {
    bool => { "type": "boolean" },
    u32 => { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32 },
    u64 => { "type": "integer", "minimum": 0 },
    i64 => { "type": "integer" },
    f64 => { "type": "number" },
    String => { "type": "string" },
    Timestamp => { "type": "string", "format": "date-time" },
    Value => {},
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro makes what others use")]
mod tests {
    use super::*;

    view! { strict
        /// Something
        /// small.
        Small {
            /// Number of items.
            count: u32,
            name: Option<String>,
        }
    }

    view! { lenient
        /// Holds others.
        Large {
            small: Vec<Small>,
        }
    }

    #[test]
    fn a_type_tells_its_shape_once_and_its_comments_with_it() {
        let mut shapes = Schemas::default();
        let reference = shapes.of::<Large>();
        assert_eq!(reference, json!({ "$ref": "#/components/schemas/Large" }));
        let all = shapes.finish();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["Large", "Small"]);
        let small = &all["Small"];
        assert_eq!(small["required"], json!(["count"]));
        assert_eq!(small["description"], "Something small.");
        assert_eq!(small["properties"]["count"]["description"], "Number of items.");
        assert_eq!(small["additionalProperties"], false);
        assert!(serde_json::from_value::<Small>(json!({ "count": 1, "more": 1 })).is_err());
    }
}
