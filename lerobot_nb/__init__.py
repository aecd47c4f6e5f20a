"""Evaluate robot policies in simulation: reproducible numbers, intervals and videos."""

from typing import TYPE_CHECKING, cast

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
    "lerobot_nb.envs.check_benchmark": ("ContractError", "check_benchmark"),
    "lerobot_nb.envs.config": ("EnvConfig", "env_to_policy_features", "make_env_config"),
    "lerobot_nb.envs.errors": ("LerobotNbError",),
    "lerobot_nb.envs.factory": ("make_env", "make_env_pre_post_processors"),
    "lerobot_nb.envs.libero_processor": ("LiberoProcessor",),
    "lerobot_nb.envs.processors": (
        "ProcessorPipeline",
        "add_envs_task",
        "check_env_attributes_and_types",
        "close_envs",
        "preprocess_observation",
    ),
    "lerobot_nb.envs.rendering": ("GlChoice", "RenderingError", "choose_gl_backend"),
    "lerobot_nb.envs.success": ("BenchmarkError",),
    "lerobot_nb.envs.vector": ("LazyVectorEnv",),
    "lerobot_nb.envs.workers": ("WorkerFault",),
    "lerobot_nb.policies.asking": ("PolicyError",),
    "lerobot_nb.policies.base": (
        "AdaptedPolicy",
        "Episode",
        "Policy",
        "PolicyLoadError",
        "PolicyLost",
        "PolicyUnavailable",
    ),
    "lerobot_nb.policies.factory": ("make_policy", "register_policy"),
    "lerobot_nb.policies.checkpoints": ("Checkpoint", "FeatureMismatch"),
    "lerobot_nb.policies.lerobot_policy": ("LerobotPolicy",),
    "lerobot_nb.policies.remote": ("RemotePolicy",),
    "lerobot_nb.policies.serve": ("PolicyServer",),
    "lerobot_nb.results.browser": ("EpisodeBrowser",),
    "lerobot_nb.results.comparison": ("Comparison", "compare_many", "compare_runs"),
    "lerobot_nb.results.dataset": ("DemonstrationError", "Demonstrations"),
    "lerobot_nb.results.merging": ("merge_runs",),
    "lerobot_nb.results.outcomes": ("Outcome", "outcome_of"),
    "lerobot_nb.results.rates": ("SuccessRate", "wilson_interval"),
    "lerobot_nb.results.records": ("EpisodeRecord", "read_records", "same_episode"),
    "lerobot_nb.results.report": ("Report",),
    "lerobot_nb.results.run_folder": ("RunFolder", "RunFolderError"),
    "lerobot_nb.evaluation.config": ("EvalConfig",),
    "lerobot_nb.evaluation.evaluate": ("EvalRun", "evaluate"),
    "lerobot_nb.evaluation.live": ("LiveEval",),
    "lerobot_nb.evaluation.parameters": ("EvalParameters",),
    "lerobot_nb.evaluation.plan": ("Plan",),
    "lerobot_nb.evaluation.progress": ("Progress",),
    "lerobot_nb.evaluation.rerun": ("rerun_episode",),
    "lerobot_nb.evaluation.resume": ("resume_run",),
    "lerobot_nb.evaluation.watching": ("watch_run",),
    "lerobot_nb.evaluation.rollout": ("eval_policy", "eval_policy_all", "rollout"),
    "lerobot_nb.evaluation.warm_workers": ("WarmWorkers",),
    "lerobot_nb.training.behaviour_cloning": ("TrainConfig", "Training", "TrainingError"),
    "lerobot_nb.training.demonstrations": ("record_demonstrations",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def _where(name: str) -> str:
    """What to type for a name that is not in the table: the module that holds it, or the nearest
    name. With a space at its end; an empty text where nothing is near.
    """
    if name.startswith("_"):
        return ""  # what inspect and its like ask every module for
    import difflib

    from lerobot_nb._modidx import d as index

    symbols = cast("dict[str, dict[str, object]]", index["syms"])
    homes = [module for module, names in symbols.items() if f"{module}.{name}" in names]
    if homes:
        return f"write {' or '.join(f'from {home} import {name}' for home in homes)}; "
    close = difflib.get_close_matches(name, __all__, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


if TYPE_CHECKING:  # for type checkers and editors, which cannot follow the table
    from lerobot_nb.envs.base import EnvFactory as EnvFactory
    from lerobot_nb.envs.base import EpisodeSpec as EpisodeSpec
    from lerobot_nb.envs.base import FeatureType as FeatureType
    from lerobot_nb.envs.base import PolicyFeature as PolicyFeature
    from lerobot_nb.envs.base import TaskInfo as TaskInfo
    from lerobot_nb.envs.check_benchmark import ContractError as ContractError
    from lerobot_nb.envs.check_benchmark import check_benchmark as check_benchmark
    from lerobot_nb.envs.config import EnvConfig as EnvConfig
    from lerobot_nb.envs.config import env_to_policy_features as env_to_policy_features
    from lerobot_nb.envs.config import make_env_config as make_env_config
    from lerobot_nb.envs.errors import LerobotNbError as LerobotNbError
    from lerobot_nb.envs.factory import make_env as make_env
    from lerobot_nb.envs.factory import make_env_pre_post_processors as make_env_pre_post_processors
    from lerobot_nb.envs.libero_processor import LiberoProcessor as LiberoProcessor
    from lerobot_nb.envs.processors import ProcessorPipeline as ProcessorPipeline
    from lerobot_nb.envs.processors import add_envs_task as add_envs_task
    from lerobot_nb.envs.processors import (
        check_env_attributes_and_types as check_env_attributes_and_types,
    )
    from lerobot_nb.envs.processors import close_envs as close_envs
    from lerobot_nb.envs.processors import preprocess_observation as preprocess_observation
    from lerobot_nb.envs.rendering import GlChoice as GlChoice
    from lerobot_nb.envs.rendering import RenderingError as RenderingError
    from lerobot_nb.envs.rendering import choose_gl_backend as choose_gl_backend
    from lerobot_nb.envs.success import BenchmarkError as BenchmarkError
    from lerobot_nb.envs.vector import LazyVectorEnv as LazyVectorEnv
    from lerobot_nb.envs.workers import WorkerFault as WorkerFault
    from lerobot_nb.evaluation.config import EvalConfig as EvalConfig
    from lerobot_nb.evaluation.evaluate import EvalRun as EvalRun
    from lerobot_nb.evaluation.evaluate import evaluate as evaluate
    from lerobot_nb.evaluation.live import LiveEval as LiveEval
    from lerobot_nb.evaluation.parameters import EvalParameters as EvalParameters
    from lerobot_nb.evaluation.plan import Plan as Plan
    from lerobot_nb.evaluation.progress import Progress as Progress
    from lerobot_nb.evaluation.rerun import rerun_episode as rerun_episode
    from lerobot_nb.evaluation.resume import resume_run as resume_run
    from lerobot_nb.evaluation.rollout import eval_policy as eval_policy
    from lerobot_nb.evaluation.rollout import eval_policy_all as eval_policy_all
    from lerobot_nb.evaluation.rollout import rollout as rollout
    from lerobot_nb.evaluation.warm_workers import WarmWorkers as WarmWorkers
    from lerobot_nb.evaluation.watching import watch_run as watch_run
    from lerobot_nb.policies.asking import PolicyError as PolicyError
    from lerobot_nb.policies.base import AdaptedPolicy as AdaptedPolicy
    from lerobot_nb.policies.base import Episode as Episode
    from lerobot_nb.policies.base import Policy as Policy
    from lerobot_nb.policies.base import PolicyLoadError as PolicyLoadError
    from lerobot_nb.policies.base import PolicyLost as PolicyLost
    from lerobot_nb.policies.base import PolicyUnavailable as PolicyUnavailable
    from lerobot_nb.policies.checkpoints import Checkpoint as Checkpoint
    from lerobot_nb.policies.checkpoints import FeatureMismatch as FeatureMismatch
    from lerobot_nb.policies.factory import make_policy as make_policy
    from lerobot_nb.policies.factory import register_policy as register_policy
    from lerobot_nb.policies.lerobot_policy import LerobotPolicy as LerobotPolicy
    from lerobot_nb.policies.remote import RemotePolicy as RemotePolicy
    from lerobot_nb.policies.serve import PolicyServer as PolicyServer
    from lerobot_nb.results.browser import EpisodeBrowser as EpisodeBrowser
    from lerobot_nb.results.comparison import Comparison as Comparison
    from lerobot_nb.results.comparison import compare_many as compare_many
    from lerobot_nb.results.comparison import compare_runs as compare_runs
    from lerobot_nb.results.dataset import DemonstrationError as DemonstrationError
    from lerobot_nb.results.dataset import Demonstrations as Demonstrations
    from lerobot_nb.results.merging import merge_runs as merge_runs
    from lerobot_nb.results.outcomes import Outcome as Outcome
    from lerobot_nb.results.outcomes import outcome_of as outcome_of
    from lerobot_nb.results.rates import SuccessRate as SuccessRate
    from lerobot_nb.results.rates import wilson_interval as wilson_interval
    from lerobot_nb.results.records import EpisodeRecord as EpisodeRecord
    from lerobot_nb.results.records import read_records as read_records
    from lerobot_nb.results.records import same_episode as same_episode
    from lerobot_nb.results.report import Report as Report
    from lerobot_nb.results.run_folder import RunFolder as RunFolder
    from lerobot_nb.results.run_folder import RunFolderError as RunFolderError
    from lerobot_nb.training.behaviour_cloning import TrainConfig as TrainConfig
    from lerobot_nb.training.behaviour_cloning import Training as Training
    from lerobot_nb.training.behaviour_cloning import TrainingError as TrainingError
    from lerobot_nb.training.demonstrations import record_demonstrations as record_demonstrations
else:

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            hint = _where(name)
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}; {hint}its public names are {', '.join(__all__)}"
            )
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
