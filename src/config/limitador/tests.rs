//! Files of Limitador, and what they become: it loads here.

use super::*;
use crate::config::load_limits;

fn imported(text: &str) -> Imported {
    import(&[Document { name: "limits.yaml".to_owned(), text: text.to_owned() }])
}

#[test]
fn limits_become_descriptors() {
    let Imported { files, left_out } = imported(
        "
- namespace: shop
  max_value: 10
  seconds: 60
  conditions: [\"descriptors[0]['req.method'] == 'GET'\"]
  variables: ['descriptors[0].user_id']
- namespace: shop
  max_value: 100
  seconds: 3600
  name: hourly
  conditions: [req.method == GET]
  variables: [user_id]
- namespace: shop
  max_value: 5
  seconds: 1
  conditions: [req.method == GET]
- {namespace: other/one, max_value: 0, seconds: 10, conditions: [], variables: [tenant]}
",
    );
    assert_eq!(left_out, []);
    assert_eq!(
        files,
        [
            (
                "other/one".to_owned(),
                "\
domain: other/one
descriptors:
  - key: tenant
    limits:
      - {name: per-10s, kind: rolling, capacity: 0, window_seconds: 10}
"
                .to_owned()
            ),
            (
                "shop".to_owned(),
                "\
domain: shop
descriptors:
  - key: req.method
    value: GET
    limits:
      - {name: per-1s, kind: rolling, capacity: 5, window_seconds: 1}
    descriptors:
      - key: user_id
        limits:
          - {name: per-60s, kind: rolling, capacity: 10, window_seconds: 60}
          - {name: hourly, kind: rolling, capacity: 100, window_seconds: 3600}
"
                .to_owned()
            ),
        ]
    );
    let documents: Vec<Document> =
        files.into_iter().map(|(name, text)| Document { name: file_name(&name), text }).collect();
    assert_eq!(documents[0].name, "limits/other%2Fone.yaml");
    let loaded = load_limits(&documents, None).unwrap();
    assert_eq!((loaded.registry.domain_names().count(), loaded.warnings), (2, vec![]));
}

#[test]
fn what_can_t_be_said_is_named_and_its_limit_left_out() {
    let Imported { files, left_out } = imported(
        "
- namespace: shop
  max_value: 10
  seconds: 60
  conditions:
    - descriptors[0].method == 'GET'
    - descriptors[0].method != 'PUT'
  variables: []
- {namespace: shop, max_value: 1, seconds: 1, conditions: [], variables: []}
- {namespace: shop, max_value: many, seconds: 1, variables: [a]}
- {namespace: shop, max_value: 1, seconds: 1, variables: [a], conditions: ['descriptors[1].b == 1']}
- {namespace: shop, max_value: 1, seconds: 1, variables: [a], policy: x}
- {namespace: shop, max_value: 2, seconds: 1, variables: [a]}
",
    );
    let said: Vec<String> = left_out.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "limits.yaml:7: [0].conditions[1]: `descriptors[0].method != 'PUT'` is more than one entry that equals one text; \
             the limit is left out",
            "limits.yaml:9: [1]: has neither conditions nor variables, so that it holds for every request of the namespace: let \
             Envoy send a `generic_key` with each, and give that a limit; it is left out",
            "limits.yaml:10: [2].max_value: must be a whole number from 0 to 9223372036854775807, not `many`",
            "limits.yaml:11: [3].variables[0]: `a` speaks of another descriptor than the rest of this limit; the limit is left \
             out",
            "limits.yaml:12: [4].policy: is not a key of a limit of Limitador; its keys are id, namespace, max_value, seconds, \
             name, conditions, variables",
        ]
    );
    assert_eq!(files.len(), 1);
}

/// There a request of bob's has both limits.
#[test]
fn a_value_has_the_limits_of_any_value_too() {
    let Imported { files, left_out } = imported(
        "
- {namespace: d, max_value: 9, seconds: 60, variables: [user]}
- {namespace: d, max_value: 1, seconds: 60, conditions: [user == bob]}
- {namespace: d, max_value: 7, seconds: 5, name: deep, variables: [user, path]}
",
    );
    assert_eq!(left_out, []);
    assert_eq!(
        files[0].1,
        "\
domain: d
descriptors:
  - key: user
    limits:
      - {name: per-60s, kind: rolling, capacity: 9, window_seconds: 60}
    descriptors:
      - key: path
        limits:
          - {name: deep, kind: rolling, capacity: 7, window_seconds: 5}
  - key: user
    value: bob
    limits:
      - {name: per-60s, kind: rolling, capacity: 1, window_seconds: 60}
      - {name: per-60s-2, kind: rolling, capacity: 9, window_seconds: 60}
    descriptors:
      - key: path
        limits:
          - {name: deep, kind: rolling, capacity: 7, window_seconds: 5}
"
    );
}
