"""Messages with the facts of a served model: its limits, its defaults, and its manifest's."""

from typing import Any

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.decoding.options import default_max_length
from attendant.server.catalogue import Role, ServedModel
from attendant_client.v1 import seq2seq_pb2 as messages

ROLES: dict[Role, messages.Role] = {
    "stable": messages.ROLE_STABLE,
    "canary": messages.ROLE_CANARY,
    "shadow": messages.ROLE_SHADOW,
    "named": messages.ROLE_NAMED,
}


def model_message(model: ServedModel, role: Role) -> messages.Model:
    """Returns the message about a served model in that role."""
    manifest, limits = model.manifest, model.limits
    return messages.Model(
        name=model.name,
        version=manifest.version,
        precision=model.precision,
        provider=model.provider,
        architecture=dict(_flattened(manifest.model)),
        source_vocabulary_size=manifest.source.vocabulary_size,
        target_vocabulary_size=manifest.target.vocabulary_size,
        limits=messages.Limits(
            **limits.model_dump(),
            max_source_characters=model.bundle.source_tokenizer.max_characters(limits.max_source_tokens),
            max_target_characters=model.bundle.target_tokenizer.max_characters(limits.max_target_tokens),
        ),
        defaults=messages.DecodingOptions(
            **manifest.decoding.model_dump(exclude={"max_length", "max_length_ratio", *TEXT_OPTIONS}),
            **{name: getattr(manifest.decoding, name) for name in TEXT_OPTIONS},
            min_length=0,
            # That of the longest source, if it depends on the source.
            max_length=default_max_length(manifest, limits.max_source_tokens),
            suppress_unk=False,
        ),
        evaluation=[
            messages.EvaluationResult(**evaluation.model_dump(exclude={"precision", "difference"}))
            for evaluation in manifest.evaluation
            # Measurements of other graphs need not hold for these.
            if evaluation.precision == model.precision
        ],
        manifest_json=manifest.to_text(),
        label=model.label,
        role=ROLES[role],
        description=model.bundle.description,
        examples=[messages.Example(source=source, target=target) for source, target in model.bundle.examples()],
    )


def _flattened(section: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns nested fields by their dotted names, except those that are None."""
    pairs: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            pairs += _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs
