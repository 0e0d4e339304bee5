"""Names that people bring along for settings, from Opacus, TensorFlow Privacy, fairlearn, Flower and scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "epoch")
_CALLED: Mapping[str, Iterable[str]] = {
    "training.learning_rate": ("lr", "step_size", "eta", "eta0", "learning_rate_init", "base_lr"),
    "training.rounds": (
        *_EPOCHS,
        *("num_rounds", "n_rounds", "num_server_rounds", "max_iter", "max_steps", "num_steps", "n_steps", "n_iter"),
    ),
    "training.batch_size": ("batchsize", "lot_size", "expected_batch_size", "train_batch_size", "logical_batch_size"),
    "training.batch_fraction": ("sample_rate", "sampling_rate", "subsampling_rate", "sampling_probability", "q"),
    "training.micro_batch": ("max_physical_batch_size", "microbatch_size", "physical_batch_size", "num_microbatches"),
    "training.optimizer": ("optim", "optimiser", "optimizer_class", "optimizer_name", "solver"),
    "training.optimizer_arguments": ("weight_decay", "betas", "nesterov", "optimizer_kwargs", "optimizer_params"),
    "training.scheduler": ("lr_scheduler", "learning_rate_scheduler", "lr_schedule"),
    "training.device": ("cuda", "gpu", "use_cuda", "use_gpu", "no_cuda"),
    "training.precision": ("dtype", "fp16", "bf16", "float64"),
    "clip.loss": (
        *("max_grad_norm", "l2_norm_clip", "clip_norm", "clipping_norm", "clipping_threshold", "max_norm"),
        *("gradient_clip", "grad_clip", "gradient_clip_val", "clip_value", "data_norm"),
    ),
    "privacy.noise_multiplier": ("sigma", "noise_scale", "noise_std", "noise_stddev"),
    "privacy.epsilon": ("target_epsilon", "eps", "target_eps", "epsilon_budget", "privacy_budget", "budget"),
    "privacy.delta": ("target_delta",),
    "privacy.relation": ("adjacency", "adjacency_relation", "neighboring_relation", "neighbouring_relation"),
    "privacy.sampling": ("poisson", "poisson_sampling"),
    "privacy.trust": ("trust_model", "threat_model", "secagg", "secure_aggregation", "central_dp", "local_dp"),
    "data.columns.sensitive": (
        *("sensitive_features", "sensitive_feature", "sensitive_attribute", "sensitive_attributes", "protected_group"),
        *("protected_attribute", "protected_attributes", "prot_attr", "sensitive_column", "group_column"),
    ),
    "data.columns.target": ("label", "label_column", "target_column", "label_name", "outcome", "y", "class_column"),
    "data.columns.target.values": ("num_classes", "n_classes", "class_names"),
    "data.columns.target.positive": ("pos_label", "favorable_label", "favorable_classes", "positive_class"),
    "data.columns.features": ("feature_names", "feature_columns", "input_columns", "numerical_columns", "x"),
    "data.columns.unit": ("user_id", "person_id", "privacy_unit", "user_column", "id_column", "patient_id"),
    "data.source": ("dataset", "data_set", "dataset_name"),
    "data.data_dir": ("data_path", "dataset_path", "data_root", "train_path", "root", "path", "file"),
    "data.held_out": ("test_path", "test_set", "test_data", "test_file", "validation_data", "eval_set"),
    "data.held_out_fraction": ("test_size", "val_size", "test_fraction", "validation_split", "validation_fraction"),
    "objective.alpha": ("fairness_weight", "penalty_weight", "lambda", "lam", "lambda_fair", "regularization"),
    "objective.penalty": ("regularizer", "constraint", "constraints", "fairness", "fairness_constraint"),
    "model.hidden": ("hidden_layer_sizes", "hidden_size", "hidden_sizes", "hidden_dim", "hidden_dims", "layers"),
    "model.kind": ("arch", "architecture", "network", "model_name", "model_type"),
    "model.activation": ("activation_fn", "nonlinearity"),
    "federation.clients": (
        *("num_clients", "n_clients", "num_supernodes", "num_partitions", "total_clients"),
        *("clients_per_round", "num_parties"),
    ),
    "federation.min_clients": (
        *("min_available_clients", "min_available_nodes", "min_fit_clients", "min_train_nodes", "fraction_fit"),
        "fraction_train",
    ),
    "federation.threads": ("num_workers", "n_jobs", "num_threads"),
    "seed": ("random_state", "random_seed", "manual_seed", "rng_seed"),
    "name": ("experiment_name", "run_name"),
    "evaluate_every": ("eval_every", "eval_steps", "evaluation_interval", "log_every", "eval_interval"),
}
"""Each setting, and its names elsewhere."""

_REMARKS: Mapping[str, Iterable[str]] = {
    "a pass over the records is 1 / training.batch_fraction rounds": _EPOCHS,
    "write training.optimizer_arguments = {weight_decay = 0.01}, and the others alike": _CALLED[
        "training.optimizer_arguments"
    ],
    "masked sums are privacy.trust = 'distributed'": ("secagg", "secure_aggregation"),
    "write privacy.sampling = 'poisson', with privacy.relation = 'add-remove'": ("poisson", "poisson_sampling"),
    "write training.device = 'cuda'": ("cuda", "gpu", "use_cuda", "use_gpu"),
    "a penalty on weights is training.optimizer_arguments = {weight_decay = 0.01}": ("regularization", "regularizer"),
}
"""More that must be known, of the names that need it."""

SYNONYMS: Mapping[str, tuple[str, str]] = {
    name: (key, next((remark for remark, of in _REMARKS.items() if name in of), ""))
    for key, names in _CALLED.items()
    for name in names
}
"""The setting that a name means, and what more must be known, or ""; names are in lower case, with underscores."""
