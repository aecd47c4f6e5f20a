"""Evaluate robot policies in simulation: reproducible numbers, intervals and videos."""

__version__ = "0.1.0"

# Public names and the modules that hold them. A module is imported when one of its names is first
# asked for (PEP 562), so `import lerobot_nb` costs nothing and a worker process loads only what it
# uses.
_HOMES = {
    "lerobot_nb.envs.base": (
        "EnvFactory",
        "EpisodeSpec",
        "FeatureType",
        "PolicyFeature",
        "TaskInfo",
    ),
    "lerobot_nb.envs.config": ("EnvConfig", "env_to_policy_features", "make_env_config"),
    "lerobot_nb.envs.contract": ("ContractError", "check_benchmark"),
    "lerobot_nb.envs.errors": ("LerobotNbError",),
    "lerobot_nb.envs.factory": ("make_env", "make_env_pre_post_processors"),
    "lerobot_nb.envs.processors": (
        "ProcessorPipeline",
        "add_envs_task",
        "check_env_attributes_and_types",
        "close_envs",
        "preprocess_observation",
    ),
    "lerobot_nb.envs.rendering": ("GlChoice", "RenderingError", "choose_gl_backend"),
    "lerobot_nb.envs.vector": ("LazyVectorEnv",),
    "lerobot_nb.policies.base": (
        "AdaptedPolicy",
        "Episode",
        "Policy",
        "PolicyLoadError",
        "PolicyLost",
        "PolicyUnavailable",
        "make_policy",
        "register_policy",
    ),
    "lerobot_nb.policies.checkpoints": ("Checkpoint", "FeatureMismatch"),
    "lerobot_nb.policies.lerobot_policy": ("LerobotPolicy",),
    "lerobot_nb.policies.remote": ("RemotePolicy",),
    "lerobot_nb.policies.serve": ("PolicyServer",),
    "lerobot_nb.results.rates": ("SuccessRate", "wilson_interval"),
    "lerobot_nb.results.records": ("EpisodeRecord", "read_records", "same_episode"),
    "lerobot_nb.results.report": ("Report",),
    "lerobot_nb.evaluation.config": ("EvalConfig",),
    "lerobot_nb.evaluation.evaluate": ("EvalRun", "evaluate"),
    "lerobot_nb.evaluation.parameters": ("EvalParameters",),
    "lerobot_nb.evaluation.rerun": ("rerun_episode",),
    "lerobot_nb.evaluation.resume": ("resume_run",),
    "lerobot_nb.evaluation.rollout": ("eval_policy", "eval_policy_all", "rollout"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; its public names are {', '.join(__all__)}"
        )
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
