"""Tiny lerobot policies with random weights, saved as lerobot saves them: config.json, model.safetensors, the processors and their statistics.

Needs lerobot; nothing is downloaded. Their features are those of Meta-World with pictures of `size` pixels.
"""

from pathlib import Path

ACTION_SIZE, STATE_SIZE = 4, 4


def features(size, state=STATE_SIZE, camera="observation.image", action=ACTION_SIZE):
    from lerobot.configs import FeatureType, PolicyFeature

    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (state,))}
    if camera is not None:
        inputs[camera] = PolicyFeature(FeatureType.VISUAL, (3, size, size))
    return {
        "input_features": inputs,
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (action,))},
    }


def statistics(config, shift=0.0):
    """Statistics that make a difference: another shift is another policy."""
    import torch

    stats = {}
    for name, feature in (config.input_features | config.output_features).items():
        shape = (3, 1, 1) if feature.type.name == "VISUAL" else feature.shape
        generator = torch.Generator().manual_seed(len(name))
        middle = 0.4 + 0.1 * torch.rand(shape, generator=generator) + shift
        stats[name] = {
            "mean": middle,
            "std": torch.full(shape, 0.7),
            "min": middle - 1.5,
            "max": middle + 1.5,
        }
    return stats


def tiny_config(kind, size, **changes):
    """kind: act, act-ensembling, diffusion-1, diffusion-2, diffusion-ddim, vqbet, tdmpc, smolvla."""
    if kind.startswith("act"):
        from lerobot.policies.act.configuration_act import ACTConfig

        settings = dict(
            chunk_size=10,
            n_action_steps=10,
            dim_model=32,
            n_heads=2,
            dim_feedforward=32,
            n_encoder_layers=1,
            n_decoder_layers=1,
            n_vae_encoder_layers=1,
            latent_dim=8,
            pretrained_backbone_weights=None,
        )
        if kind == "act-ensembling":
            settings |= dict(temporal_ensemble_coeff=0.01, n_action_steps=1)
        return ACTConfig(**features(size), device="cpu", **settings | changes)
    if kind.startswith("diffusion"):
        from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig

        n_obs_steps = 1 if kind == "diffusion-1" else 2
        settings = dict(
            n_obs_steps=n_obs_steps,
            horizon=8,
            n_action_steps=4,
            down_dims=(16, 32),
            diffusion_step_embed_dim=16,
            num_train_timesteps=6,
            crop_shape=None,
            crop_is_random=False,
            spatial_softmax_num_keypoints=4,
            pretrained_backbone_weights=None,
            use_group_norm=True,
            noise_scheduler_type="DDIM" if kind == "diffusion-ddim" else "DDPM",
        )
        return DiffusionConfig(**features(size), device="cpu", **settings | changes)
    if kind == "vqbet":
        from lerobot.policies.vqbet.configuration_vqbet import VQBeTConfig

        settings = dict(
            n_obs_steps=2,
            n_action_pred_token=2,
            action_chunk_size=3,
            crop_shape=None,
            crop_is_random=False,
            pretrained_backbone_weights=None,
            use_group_norm=True,
            spatial_softmax_num_keypoints=4,
            vqvae_n_embed=4,
            vqvae_embedding_dim=8,
            vqvae_enc_hidden_dim=8,
            gpt_block_size=50,
            gpt_input_dim=16,
            gpt_output_dim=16,
            gpt_n_layer=1,
            gpt_n_head=2,
            gpt_hidden_dim=16,
        )
        return VQBeTConfig(**features(size), device="cpu", **settings | changes)
    if kind == "tdmpc":
        from lerobot.policies.tdmpc.configuration_tdmpc import TDMPCConfig

        settings = dict(
            horizon=3,
            cem_iterations=2,
            n_gaussian_samples=8,
            n_elites=3,
            n_pi_samples=3,
            latent_dim=8,
            mlp_dim=8,
            q_ensemble_size=2,
            image_encoder_hidden_dim=4,
            state_encoder_hidden_dim=8,
        )
        return TDMPCConfig(**features(size), device="cpu", **settings | changes)
    if kind == "smolvla":
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig

        settings = dict(
            chunk_size=6,
            n_action_steps=4,
            num_steps=2,
            max_state_dim=8,
            max_action_dim=8,
            resize_imgs_with_padding=(32, 32),
            num_vlm_layers=2,
            num_expert_layers=2,
            tokenizer_max_length=12,
            load_vlm_weights=False,
        )
        return SmolVLAConfig(**features(size), device="cpu", **settings | changes)
    raise ValueError(f"kind={kind!r} is not known")


def save_vision_language_backbone(folder):
    """A SmolVLM so small that it is made in no time: configuration, picture processor and a
    tokenizer of words.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    words = [
        "<pad>",
        "<unk>",
        "<bos>",
        "<eos>",
        "<image>",
        "<fake_token_around_image>",
        "<global-img>",
        "move",
        "the",
        "gripper",
        "to",
        "goal",
        "push",
        "pull",
        "open",
    ]
    model = Tokenizer(
        WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    model.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens={
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<eos>",
        },
    )
    config = SmolVLMConfig(
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": 32,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "pad_token_id": 0,
        },
        scale_factor=2,
        image_token_id=4,
        pad_token_id=0,
    )
    config.save_pretrained(folder)
    processor = SmolVLMProcessor(SmolVLMImageProcessor(), tokenizer, SmolVLMVideoProcessor())
    processor.save_pretrained(folder)
    return str(folder)


def save_checkpoint(folder, kind, size=48, seed=0, shift=0.0, **changes):
    """Save a tiny policy with its processors into `folder`; returns (folder, policy, preprocessor,
    postprocessor).
    """
    import torch
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "smolvla":
        changes.setdefault("vlm_model_name", save_vision_language_backbone(folder / "backbone"))
    config = tiny_config(kind, size, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = get_policy_class(config.type)(config)
        with torch.no_grad():  # weights large enough for observation and noise to matter
            for parameter in policy.parameters():
                if parameter.is_floating_point() and parameter.ndim > 1:
                    parameter.mul_(1.5)
    if kind == "vqbet":
        policy.vqbet.action_head.vqvae_model.discretized.fill_(True)
    policy.eval()
    preprocessor, postprocessor = make_pre_post_processors(
        config, dataset_stats=statistics(config, shift)
    )
    policy.save_pretrained(folder)
    preprocessor.save_pretrained(folder)
    postprocessor.save_pretrained(folder)
    return folder, policy, preprocessor, postprocessor
