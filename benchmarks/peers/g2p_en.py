"""g2p_en, in its own environment: what most people take for English words that no dictionary has."""

import os
import zipfile
from pathlib import Path

from benchmarks.job import Job, answer_jobs
from benchmarks.pronunciation.words import words

CORPORA = {
    "corpora/cmudict.zip": {"cmudict/cmudict": "A 1 AH0\n"},
    "taggers/averaged_perceptron_tagger.zip": {},
}
"""What it would fetch when it is imported: a dictionary, here of one word, and a tagger, which no single word needs."""


def work(folder: str) -> None:
    """Decodes in process, a word at a time: it has no batches."""
    for name, files in CORPORA.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in files.items():
                archive.writestr(member, text)
    os.environ["NLTK_DATA"] = folder
    from g2p_en import G2p  # noqa: PLC0415  # it looks for them when it is imported

    model = G2p()

    def pronounce(batch: list[str], job: Job) -> None:
        for word in batch:
            model.predict(word)

    answer_jobs(pronounce, sources=words)
