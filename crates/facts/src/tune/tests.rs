//! Plans of synthetic nodes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::FactSet;
use crate::node::{Package, PowerLimits, ReadError, Reading, Setting};

fn gpu(index: u32) -> GpuReadings {
    let off = Reading::Value(Setting { current: false, pending: false });
    GpuReadings {
        index,
        uuid: Reading::Value(format!("GPU-{index}")),
        name: Reading::Value("NVIDIA H100 80GB HBM3".to_owned()),
        persistence: Reading::Value(false),
        compute_mode: Reading::Value(0),
        power: Reading::Value(PowerLimits {
            limit_mw: 600_000,
            default_mw: 700_000,
            min_mw: 200_000,
            max_mw: 700_000,
        }),
        clocks: Reading::Value(ApplicationClocks {
            memory_mhz: 2619,
            graphics_mhz: 1500,
            default_memory_mhz: 2619,
            default_graphics_mhz: 1980,
            supported_graphics_mhz: vec![1980, 1965, 1500, 345],
        }),
        ecc: off.clone(),
        mig: off,
        mig_layout: Reading::Absent,
        accounting: Reading::Value(false),
    }
}

fn readings() -> Readings {
    Readings {
        gpus: GpusSeen::Answered(vec![gpu(0), gpu(1)]),
        governors: Reading::Value(BTreeMap::from([(
            "/sys/governor".to_owned(),
            Choice {
                current: Reading::Value("powersave".to_owned()),
                available: Reading::Value(vec!["performance".to_owned(), "powersave".to_owned()]),
            },
        )])),
        hugepages: Reading::Value(Choice {
            current: Reading::Value("always".to_owned()),
            available: Reading::Value(vec!["always".to_owned(), "madvise".to_owned()]),
        }),
        files: BTreeMap::new(),
        memlock: MemlockReadings {
            limits: Reading::Value(Vec::new()),
            services: Reading::Value(BTreeMap::new()),
        },
        packages: Reading::Value(vec![Package {
            name: "nvidia-driver-580-server".to_owned(),
            version: "580.95.05-0ubuntu1".to_owned(),
            status: "installed".to_owned(),
            held: false,
        }]),
        has_apt: Reading::Value(true),
        persistenced: Reading::Absent,
        can_start_services: true,
        module_parameters: Reading::Value(BTreeMap::new()),
    }
}

fn profile_with(name: &str, want: &str) -> Profile {
    Profile {
        name: "test".to_owned(),
        summary: String::new(),
        setting: vec![ProfileSetting {
            name: name.to_owned(),
            want: Some(want.to_owned()),
            variables: Vec::new(),
            reason: "a test".to_owned(),
            origin: None,
            unverified: false,
        }],
    }
}

fn plan_steps(profile: &Profile, readings: &Readings) -> Vec<Step> {
    plan(FactSet::embedded(), profile, readings, &PlanOptions::default()).unwrap()
}

fn first(name: &str, want: &str, readings: &Readings) -> Step {
    plan_steps(&profile_with(name, want), readings).remove(0)
}

fn error(name: &str, want: &str) -> String {
    let err = profile_with(name, want).read().unwrap_err();
    let cause = std::error::Error::source(&err).map(ToString::to_string).unwrap_or_default();
    format!("{err}: {cause}")
}

#[test]
fn embedded_profiles_parse_and_settings_have_reason_and_source() {
    let names: Vec<&str> =
        Profiles::embedded().iter().map(|profile| profile.name.as_str()).collect();
    assert_eq!(names, ["inference", "shared", "training"]);
    for profile in Profiles::embedded().iter() {
        profile.read().unwrap_or_else(|err| panic!("{err:?}"));
        for setting in &profile.setting {
            let origins = setting
                .variables
                .iter()
                .map(|variable| (&variable.name, &variable.reason, &variable.origin));
            let all = origins.chain([(&setting.name, &setting.reason, &setting.origin)]);
            for (name, reason, origin) in all {
                assert!(!reason.trim().is_empty(), "{name}");
                let origin = origin.as_ref().unwrap_or_else(|| panic!("{name}: no source"));
                assert!(
                    !origin.source.is_empty()
                        && origin.source.iter().all(|source| source.len() > 5)
                );
                assert!(origin.retrieved <= FactSet::embedded().set.date, "{name}");
            }
            // Built-in profiles must not contain absolute watts.
            let want = setting.want.as_deref().unwrap_or_default();
            assert!(!want.ends_with('W'), "{}: {want}", setting.name);
        }
    }
}

#[test]
fn profile_variables_pass_lint() {
    for profile in Profiles::embedded().iter() {
        for setting in &profile.setting {
            let pairs = setting
                .variables
                .iter()
                .map(|variable| (variable.name.as_str(), variable.value.as_str()));
            let found = crate::lint::lint_environment(&FactSet::embedded().settings, pairs);
            assert_eq!(found, [], "{}: {}", profile.name, setting.name);
        }
    }
}

#[test]
fn profile_variables_are_known_names() {
    let known: Vec<&str> = FactSet::embedded()
        .settings
        .namespace
        .iter()
        .flat_map(|space| space.names.iter().chain(&space.others))
        .map(String::as_str)
        .collect();
    for profile in Profiles::embedded().iter() {
        for variable in profile.setting.iter().flat_map(|setting| &setting.variables) {
            assert!(known.contains(&variable.name.as_str()), "{}", variable.name);
        }
    }
}

#[test]
fn power_limit_is_relative_to_the_gpu() {
    let readings = readings();
    let limit = |want: &str| {
        let step = first("gpu.power-limit", want, &readings);
        (step.standing.name(), step.wanted, step.change.map(|change| change.value))
    };
    let number = |milliwatts| Some(Value::Number(milliwatts));
    assert_eq!(limit("default"), ("change", "700 W".to_owned(), number(700_000)));
    assert_eq!(limit("max"), ("change", "700 W".to_owned(), number(700_000)));
    assert_eq!(limit("50 %"), ("change", "450 W".to_owned(), number(450_000)));
    assert_eq!(limit("600 W"), ("as wanted", "600 W".to_owned(), None));
    assert_eq!(limit("900 W"), ("refused", "900 W".to_owned(), None));
    assert_eq!(limit("199 W"), ("refused", "199 W".to_owned(), None));
    let step = first("gpu.power-limit", "900 W", &readings);
    assert_eq!(step.standing.words(), "the GPU accepts 200 W to 700 W");
}

#[test]
fn clocks_must_be_listed_by_the_gpu() {
    let readings = readings();
    let clocks = |want: &str| first("gpu.application-clocks", want, &readings);
    let value = clocks("default").change.unwrap().value;
    assert_eq!(value, Value::Clocks { memory_mhz: 2619, graphics_mhz: 1980 });
    assert_eq!(clocks("1500 MHz").standing, StepStatus::AsWanted);
    let refused = clocks("1970 MHz").standing;
    assert_eq!(refused.words(), "the GPU accepts 345 to 1980 MHz in steps, such as 1965 MHz");
}

#[test]
fn changes_pending_a_reset_are_marked() {
    let mut readings = readings();
    let step = first("gpu.ecc", "on", &readings);
    assert_eq!(step.standing, StepStatus::Change(vec![Need::Reset]));
    if let GpusSeen::Answered(gpus) = &mut readings.gpus {
        gpus[0].ecc = Reading::Value(Setting { current: false, pending: true });
        gpus[1].ecc = Reading::Absent;
    }
    let steps = plan_steps(&profile_with("gpu.ecc", "on"), &readings);
    assert_eq!(steps[0].standing, StepStatus::Waits(vec![Need::Reset]));
    assert_eq!(steps[0].current.as_deref(), Some("off, on after a reset"));
    assert_eq!(steps[1].standing.words(), "the GPU does not support it");
    assert!(!steps[0].standing.is_fine() && steps[1].standing.is_fine());
}

#[test]
fn mig_restricts_changes() {
    let mut readings = readings();
    if let GpusSeen::Answered(gpus) = &mut readings.gpus {
        gpus[0].mig = Reading::Value(Setting { current: true, pending: true });
        gpus[0].mig_layout = Reading::Value(vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()]);
        gpus[0].compute_mode = Reading::Absent;
    }
    let words = |name: &str, want: &str| {
        let step = first(name, want, &readings);
        (step.standing.name(), step.standing.words(), step.change.is_some())
    };
    let off = words("gpu.mig", "off");
    assert_eq!(off.0, "refused");
    assert!(off.1.contains("MIG instances exist (2)") && !off.2, "{off:?}");
    // MIG stays on if its instances are unreadable.
    let mut unreadable = readings.clone();
    if let GpusSeen::Answered(gpus) = &mut unreadable.gpus {
        gpus[0].mig_layout = Reading::Unreadable(ReadError::nvml(999));
    }
    let step = first("gpu.mig", "off", &unreadable);
    assert_eq!((step.standing.name(), step.change), ("unknown", None));
    assert!(step.standing.words().contains("whether instances exist: NVML_ERROR_UNKNOWN"));
    let accounting = words("gpu.accounting", "on");
    assert_eq!(accounting.1, "the GPU does not change it while MIG is on");
    assert_eq!(
        words("gpu.compute-mode", "default").1,
        "the GPU does not support it while MIG is on"
    );
    assert_eq!(words("gpu.mig-layout", "3g.40gb, 3g.40gb").0, "as wanted");
    let other = words("gpu.mig-layout", "7g.80gb");
    assert!(other.0 == "by hand" && other.1.contains("nvidia-smi mig"), "{other:?}");
    let steps = plan_steps(&profile_with("gpu.mig-layout", "7g.80gb"), &readings);
    assert_eq!(steps[1].standing, StepStatus::DoesNotApply("MIG is off".to_owned()));
}

#[test]
fn persistence_prefers_the_daemon() {
    let mut readings = readings();
    let steps = plan_steps(&profile_with("gpu.persistence", "on"), &readings);
    assert_eq!(steps.len(), 2);
    assert!(matches!(steps[0].change.as_ref().unwrap().target, Target::Gpu { .. }));
    readings.persistenced =
        Reading::Value(ServiceState { enabled: false, running: false, is_static: false });
    let step = first("gpu.persistence", "on", &readings);
    let change = step.change.unwrap();
    assert_eq!(change.target, Target::Service { unit: PERSISTENCED.to_owned() });
    assert_eq!(change.value, Value::Service { enabled: true, running: true });
    // The daemon may run without persistence mode: each GPU is checked too.
    let steps = plan_steps(&profile_with("gpu.persistence", "on"), &readings);
    assert_eq!(steps.len(), 3);
    assert!(matches!(steps[2].change.as_ref().unwrap().target, Target::Gpu { .. }));
    // Persistence modes that the daemon changes are reverted with it.
    let beside = &steps[0].change.as_ref().unwrap().beside;
    let mode = |uuid: &str| Target::Gpu { uuid: uuid.to_owned(), control: GpuControl::Persistence };
    assert_eq!(*beside, [mode("GPU-0"), mode("GPU-1")]);
    // A static unit only has to run.
    let state = |running| ServiceState { enabled: false, running, is_static: true };
    readings.persistenced = Reading::Value(state(true));
    assert_eq!(first("gpu.persistence", "on", &readings).standing, StepStatus::AsWanted);
    readings.persistenced = Reading::Value(state(false));
    let change = first("gpu.persistence", "on", &readings).change.unwrap();
    assert_eq!(change.value, Value::Service { enabled: false, running: true });
    readings.persistenced = Reading::Value(ServiceState { is_static: false, ..state(false) });
    // Services cannot be started for another root.
    readings.can_start_services = false;
    let change = first("gpu.persistence", "on", &readings).change.unwrap();
    assert_eq!(change.value, Value::Service { enabled: true, running: false });
    readings.persistenced = Reading::Unreadable(ReadError::Os { errno: 13 });
    assert_eq!(first("gpu.persistence", "on", &readings).standing.name(), "unknown");
}

#[test]
fn changes_lost_without_persistence_are_marked() {
    let mut readings = readings();
    let needs = |readings: &Readings| first("gpu.power-limit", "max", readings).standing;
    assert_eq!(needs(&readings), StepStatus::Change(vec![Need::Persistence]));
    let mut both = profile_with("gpu.power-limit", "max");
    both.setting.extend(profile_with("gpu.persistence", "on").setting);
    let steps = plan_steps(&both, &readings);
    let power = steps.iter().find(|step| step.setting == "gpu.power-limit").unwrap();
    assert_eq!(power.standing, StepStatus::Change(vec![Need::EveryBoot]));
    assert!(steps[0].setting == "gpu.persistence", "persistence comes first");
    if let GpusSeen::Answered(gpus) = &mut readings.gpus {
        gpus[0].persistence = Reading::Value(true);
    }
    assert_eq!(needs(&readings), StepStatus::Change(vec![Need::EveryBoot]));
}

#[test]
fn unreadable_settings_are_unknown_and_unchanged() {
    let unread = || Reading::Unreadable(ReadError::Os { errno: 13 });
    let mut readings = readings();
    readings.gpus = GpusSeen::Silent("NVML was not asked".to_owned());
    readings.governors = Reading::Unreadable(ReadError::Os { errno: 13 });
    readings.hugepages = Reading::Unreadable(ReadError::Os { errno: 13 });
    readings.packages = Reading::Unreadable(ReadError::Os { errno: 13 });
    readings.has_apt = unread().map(|()| true);
    readings.persistenced = Reading::Unreadable(ReadError::Os { errno: 13 });
    for profile in Profiles::embedded().iter() {
        for step in plan_steps(profile, &readings) {
            assert_eq!(step.standing.name(), "unknown", "{step:?}");
            assert_eq!(step.change, None);
        }
    }
    let mut readings = self::readings();
    if let GpusSeen::Answered(gpus) = &mut readings.gpus {
        gpus[1].uuid = Reading::Unreadable(ReadError::nvml(15));
    }
    let steps = plan_steps(&profile_with("gpu.ecc", "on"), &readings);
    assert_eq!(steps[0].standing.name(), "change");
    assert!(steps[1].standing.words().contains("GPU_IS_LOST"), "{steps:?}");
}

#[test]
fn memory_mode_requires_a_coherent_gpu() {
    let mut readings = readings();
    let name = "host.module.NVreg_CoherentGPUMemoryMode";
    let step = first(name, "driver", &readings);
    assert_eq!(step.standing.words(), "no GPU here shares memory with the CPU");
    if let GpusSeen::Answered(gpus) = &mut readings.gpus {
        gpus[0].name = Reading::Value("NVIDIA GB200".to_owned());
    }
    let absent = first(name, "driver", &readings).standing;
    assert!(absent.words().contains("has no parameter"), "{absent:?}");
    let mut parameters = BTreeMap::from([("CoherentGPUMemoryMode".to_owned(), String::new())]);
    readings.module_parameters = Reading::Value(parameters.clone());
    let path = SettingKind::from_name(name).unwrap().file().unwrap();
    readings.files.insert(path.clone(), Reading::Value(Value::NoFile));
    let step = first(name, "driver", &readings);
    assert_eq!(step.standing, StepStatus::Change(vec![Need::ModuleReload]));
    let written = step.change.unwrap().value;
    readings.files.insert(path, Reading::Value(written));
    let step = first(name, "driver", &readings);
    assert_eq!(step.standing, StepStatus::Waits(vec![Need::ModuleReload]));
    parameters.insert("CoherentGPUMemoryMode".to_owned(), "driver".to_owned());
    readings.module_parameters = Reading::Value(parameters);
    assert_eq!(first(name, "driver", &readings).standing, StepStatus::AsWanted);
}

#[test]
fn refuses_words_the_kernel_does_not_list() {
    let readings = readings();
    let step = first("host.cpu-governor", "schedutil", &readings);
    assert_eq!(step.standing.words(), "the kernel accepts performance, powersave");
    assert_eq!(first("host.transparent-hugepages", "madvise", &readings).standing.name(), "change");
    let hold = first("host.package-hold", "on", &readings);
    assert_eq!(hold.subject, StepSubject::Host("nvidia-driver-580-server".to_owned()));
    assert_eq!(hold.standing.name(), "change");
}

#[test]
fn unverified_settings_need_the_option() {
    let readings = readings();
    let mut profile = profile_with("gpu.ecc", "on");
    profile.setting[0].unverified = true;
    let steps = plan_steps(&profile, &readings);
    assert!(steps.iter().all(|step| step.change.is_none() && step.standing.is_fine()));
    let options = PlanOptions { unverified: true, only: Vec::new() };
    let steps = plan(FactSet::embedded(), &profile, &readings, &options).unwrap();
    assert!(steps.iter().all(|step| step.change.is_some()));
}

#[test]
fn invalid_profiles_are_rejected_with_suggestions() {
    assert!(error("gpu.powerlimit", "default").contains("there is no setting `gpu.powerlimit`"));
    let near = SettingKind::from_name("gpu.powerlimit").unwrap_err();
    assert!(
        matches!(near, SettingError::Unknown { near: Some(near), .. } if near == "gpu.power-limit")
    );
    assert!(error("gpu.power-limit", "lots").contains("does not take `lots`"));
    assert!(error("gpu.power-limit", "140 %").contains("does not take"));
    assert!(error("gpu.locked-clocks", "1410 MHz").contains("could not be reverted"));
    assert!(error("host.module.NVreg_X", "a b").contains("does not take"));
    assert!(error("host.module.NVreg_../../x", "a").contains("there is no setting"));
    assert!(error("jobs.torch", "x").contains("takes `variables`"));
    let mut twice = profile_with("gpu.ecc", "on");
    twice.setting.push(twice.setting[0].clone());
    assert!(matches!(twice.read(), Err(ProfileError::Twice { .. })));
    let unknown = Profiles::embedded().named("trainning").unwrap_err();
    assert!(
        matches!(unknown, ProfileError::Unknown { near: Some(near), .. } if near == "training")
    );
}

#[test]
fn only_targets_of_profiles_are_allowed() {
    let file = |path: &str| Target::File { path: path.to_owned() }.is_allowed();
    for name in ["host.memlock", "host.upgrade-guard", "host.module.NVreg_X_1", "jobs.torch"] {
        assert!(file(&SettingKind::from_name(name).unwrap().file().unwrap()), "{name}");
    }
    for path in [
        "/etc/sudoers.d/x",
        "/etc/modprobe.d/farrier-../../x.conf",
        "/etc/modprobe.d/other.conf",
        "/etc/farrier/jobs/../../x.env",
        "/etc/farrier/jobs/sh.env",
        "",
    ] {
        assert!(!file(path), "{path}");
    }
    let kernel = |path: &str| Target::Kernel { path: path.to_owned() }.is_allowed();
    assert!(kernel(HUGEPAGES_FILE));
    assert!(kernel("/sys/devices/system/cpu/cpufreq/policy12/scaling_governor"));
    assert!(kernel("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"));
    assert!(!kernel("/sys/devices/system/cpu/cpu0/../../x/cpufreq/scaling_governor"));
    assert!(!kernel("/sys/devices/system/cpu/cpu/cpufreq/scaling_governor"));
    assert!(!kernel("/proc/sysrq-trigger"));
    let hold = |package: &str| Target::Hold { package: package.to_owned() }.is_allowed();
    assert!(hold("libnvidia-compute-580:amd64") && hold("linux-image-6.8.0-1+x"));
    assert!(!hold("--option=x") && !hold("a b") && !hold(""));
    let unit = |unit: &str| Target::Service { unit: unit.to_owned() }.is_allowed();
    assert!(unit(PERSISTENCED) && !unit("ssh"));
}

#[test]
fn content_round_trips() {
    for bytes in [Vec::new(), b"text\n".to_vec(), vec![0, 255, 128, 10], "grün".as_bytes().to_vec()]
    {
        assert_eq!(Content::from_bytes(bytes.clone()).bytes(), bytes);
        let text = serde_json::to_string(&Content::from_bytes(bytes.clone())).unwrap();
        assert_eq!(serde_json::from_str::<Content>(&text).unwrap().bytes(), bytes);
    }
}

proptest! {
    #[test]
    fn any_setting_parses_or_is_rejected(name in "(gpu|host|jobs)?[a-z.:-]{0,24}[^\\x00]{0,6}", want in ".{0,24}") {
        if let Ok(kind) = SettingKind::from_name(&name) {
            prop_assert_eq!(kind.to_string(), name.clone());
        }
        let _ = profile_with(&name, &want).read();
        for known in ["gpu.power-limit", "gpu.application-clocks", "gpu.mig-layout", "host.memlock"] {
            let _ = profile_with(known, &want).read();
        }
    }

    #[test]
    fn planned_limit_is_within_the_gpu_range(
        least in 0..900_000_u32,
        span in 0..900_000_u32,
        percent in 0..=100_u32,
        watts in 0..2_000_u32,
    ) {
        let mut readings = readings();
        let power = PowerLimits {
            limit_mw: least,
            default_mw: least + span / 2,
            min_mw: least,
            max_mw: least + span,
        };
        if let GpusSeen::Answered(gpus) = &mut readings.gpus {
            gpus[0].power = Reading::Value(power);
        }
        for want in ["default".to_owned(), "max".to_owned(), format!("{percent} %"), format!("{watts} W")] {
            let step = first("gpu.power-limit", &want, &readings);
            match step.change.map(|change| change.value) {
                Some(Value::Number(limit)) => {
                    prop_assert!((power.min_mw..=power.max_mw).contains(&limit), "{want}: {limit}");
                }
                None => prop_assert!(step.standing == StepStatus::AsWanted || want.ends_with('W')),
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
