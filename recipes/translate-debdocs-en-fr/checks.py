"""Checks translations of 300 inputs as people type them: placeholders, tags, addresses, numbers, names, capitals and
line breaks must come back.

    python -m attendant.recipes.translate-debdocs-en-fr.checks models/translate-en-fr

No input is a phrase of the training data.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.server.library import load


@dataclass(frozen=True, slots=True)
class Check:
    """An input, and the parts that its translation must have.

    Attributes:
        kept: parts that must occur as often as in the source, in any order.
        words: for each line of the source, words separated by slashes, one of which its translation must have.
            Further lines may have any translation.
    """

    kind: str
    source: str
    kept: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def faults(self, answer: str) -> list[str]:
        """Returns the faults of a translation, as text."""
        faults = [
            f"{part} {answer.count(part)} times, must be {self.source.count(part)} times"
            for part in self.kept
            if answer.count(part) != self.source.count(part)
        ]
        lines, sources = answer.split("\n"), self.source.split("\n")
        if len(lines) != len(sources):
            faults.append(f"{len(lines)} lines, must be {len(sources)}")
        if self.kind == "capitals" and answer != answer.upper():
            faults.append("small letters, must be capitals")
        faults += [
            f"{line!r}, must hold {words}"
            for line, words in zip(lines, self.words, strict=False)
            if not any(word.casefold() in line.casefold() for word in words.split("/"))
        ]
        return faults


def checks() -> list[Check]:
    """Returns the inputs, kind after kind."""
    return [
        *_capitals(),
        *islice(_filled("placeholders", PLACEHOLDER_TEXTS, PLACEHOLDERS), 60),
        *islice(_filled("tags", TAG_TEXTS, TAGS), 40),
        *islice(_filled("addresses", ADDRESS_TEXTS, ADDRESSES), 40),
        *islice(_filled("numbers", NUMBER_TEXTS, NUMBERS), 40),
        *islice(_filled("names", NAME_TEXTS, NAMES), 30),
        *islice(_lines(), 30),
    ]


def _pairs(table: str) -> list[list[str]]:
    return [line.split(" | ") for line in table.strip().split("\n")]


def _capitals() -> Iterator[Check]:
    for source, words in _pairs(SENTENCES):
        yield Check("capitals", source.upper(), words=(words,))


def _filled(kind: str, texts: str, values: Sequence[str]) -> Iterator[Check]:
    """Yields the texts repeatedly, each `@` replaced by the next value, or by a pair of values around a word."""
    following = cycle(values)
    for text in cycle(texts.strip().split("\n")):
        source, kept = text, list[str]()
        while "@" in source.replace(AT, ""):
            begin, _, end = next(following).partition("...")
            head, _, tail = source.partition("@")
            if end:
                inside, _, tail = tail.partition("@")
                tail = inside + end + tail
            source = head + begin.replace("@", AT) + tail
            kept += [begin, end] if end else [begin]
        yield Check(kind, source.replace(AT, "@"), tuple(dict.fromkeys(kept)))


def _lines() -> Iterator[Check]:
    """Yields texts of two and three lines; every third has a blank line between them."""
    following = cycle(_pairs(SENTENCES)[:-1])  # A number of sentences that no round of texts divides.
    for number in cycle(range(6)):
        lines = [next(following) for _ in range(2 + number % 2)]
        gap = "\n\n" if number % 3 == 2 else "\n"
        words = [line[1] for line in lines]
        if gap == "\n\n":
            words = [word for each in words for word in (each, "")][:-1]
        yield Check("lines", gap.join(line[0] for line in lines), words=tuple(words))


AT: Final = "\0"
"""Replaces the `@` of an address while a text is filled."""

SENTENCES: Final = """
Save the document before you close the window. | document
Select a cell and press the Enter key. | cellule
The selected text is deleted. | texte
Open the menu and choose a font. | menu
Click the icon to insert a table. | icône
Enter the password of the database. | mot de passe
The file was saved in another folder. | fichier
Remove all empty lines. | ligne
This option is not available. | option
The page could not be printed. | page
Choose the color of the background. | couleur
Insert a new column on the left. | colonne
Close all windows of the program. | fenêtre
The list shows the names of all users. | liste
Type a name for the new style. | nom
The function returns a number. | fonction
Only the first row is sorted. | ligne/rangée
Change the size of the image. | taille
Add a comment to the current slide. | commentaire
The dialog contains two buttons. | boîte/dialogue
Double-click the border of the frame. | bordure/cadre
Drag the object with the mouse. | objet
The process was stopped by a signal. | processus
No memory is available. | mémoire
The address is not valid. | adresse
Copy the formula into the next cell. | formule/cellule
Enable the automatic spell check. | orthograph
The table has too many rows. | tableau/table
Use the arrow keys to move the cursor. | curseur
Select the language of the text. | langue
The macro cannot be run. | macro
Export the drawing as an image. | image
The chart displays the values of the range. | diagramme/valeur
Press the space bar to start the presentation. | espace/présentation
Delete the bookmark from the document. | document
Each user has a home directory. | répertoire/utilisateur
The system call failed. | système
Read the manual page. | manuel/page
The device is busy. | périphérique
This field is reserved for future use. | champ
The value must be positive. | valeur
Define a shortcut for this command. | raccourci
The header appears on every page. | en-tête
Show the properties of the control. | propriété
Undo the last action. | action
Find and replace words. | recherch/remplac
The character is not printed. | caractère
Group the objects on the page. | objet
Protect the sheet with a password. | feuille
Set the margins of the paper. | marge
The query returns no records. | requête/enregistrement
Print the selected pages only. | page
The thread waits for a signal. | thread/signal
The kernel ignores this flag. | noyau
Lock the file before you write. | fichier
The socket is already connected. | socket/connect
Rotate the text by an angle. | angle
Create an index at the end of the text. | index
Move the mouse pointer over the link. | lien/pointeur/souris
Reset the filter of the list. | filtre
"""
"""A sentence, and words of which a translation has at least one."""

PLACEHOLDERS: Final = (
    "{count}", "%s", "%d", "${VERSION}", "{{user}}", "%1$s", "$HOME", "{0}", "%(path)s", "{file_name}", "%2$d", "{}",
    "{{ item.price }}", "%i", "${user.name}", "#{id}", "%@", "{n}", "$PATH",
)  # fmt: skip
PLACEHOLDER_TEXTS: Final = """
Delete @ pages?
The folder @ is empty.
Could not read the value of @.
@ of the documents were printed.
Replace @ by @ in the whole text.
The user @ has opened the document.
The command @ expects a number.
Select the option @ in the menu.
Welcome, @! The file @ is ready.
Set the variable @ before you start the program.
@ is not the name of a style.
The table has @ rows and @ columns.
Insert the field @ at the end of the line.
The script needs @ megabytes of memory.
The template is stored in @.
Printing page @
If @ is not set, the default is used.
"""

TAGS: Final = (
    "<b>...</b>", "<em>...</em>", "<code>...</code>", '<a href="https://example.org/help">...</a>',
    "<strong>...</strong>", '<span class="key">...</span>', "<u>...</u>", "<kbd>...</kbd>", "<i>...</i>",
    "<h2>...</h2>", "<q>...</q>",
)  # fmt: skip
TAG_TEXTS: Final = """
Click @OK@ to close the dialog.
@Warning:@ the file is deleted.
Open the @File@ menu.
The @first@ column has the names.
Press @Ctrl@ and select the @second@ row.
@Save the document.@
See the @manual page@ for details.
Choose @Format@, then @Page@.
The value is @not@ changed.
Type the @name@ of the style.
"""

ADDRESSES: Final = (
    "https://www.example.org/manual/index.html", "support@example.com", "/usr/share/doc/README",
    "~/.config/settings.ini", "http://localhost:8080/admin?page=2", "jean.dupont@mail.example.fr",
    "C:\\Users\\Public\\report.docx", "/etc/fstab", "https://github.com/python/cpython/issues",
    "./build/output.log", "https://example.com/search?q=a+b&lang=en#top",
)  # fmt: skip
ADDRESS_TEXTS: Final = """
The documentation is at @ and can be printed.
Send the log file to @.
The program reads @ when it starts.
Copy @ to another folder.
The settings are stored in @.
Open @, then select a language.
More examples: @
If @ does not exist, an error is returned.
Replace @ with @.
"""

NUMBERS: Final = (
    "42", "2024", "1024", "3.14.2", "2023-11-05", "17:45", "192.168.0.1", "100", "65535", "7", "31/12/1999",
    "0x1F", "12",
)  # fmt: skip
NUMBER_TEXTS: Final = """
The limit is @.
Version @ of the program was released.
The line @ of the file is too long.
Select a value between @ and @.
The page has @ lines.
This option needs kernel @ or later.
The document was printed on @.
If the value is above @, the text is cut.
The error @ occurred in line @.
Use @ as the address of the server.
"""

NAMES: Final = (
    "Élodie Müller", "Łukasz", "🎉", "東京", "Nguyễn Văn An", "O'Connor", "👍🏽", "Иван Петров", "ChatGPT", "Ζωή",
    "AT&T", "🚀🚀", "Grüße-AG", "محمد", "iPhone 15",
)  # fmt: skip
NAME_TEXTS: Final = """
The document was written by @.
@ is the name of the new template.
Add @ to the list of users.
The folder of @ was deleted.
The text contains @ twice.
Select @ in the list and press Enter.
Open the document of @ in a new window.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints how many inputs of each kind have no fault; returns 1 if they are below 95 % of all inputs."""
    parser = argparse.ArgumentParser(description="Checks what the translations of a bundle keep.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--show", action="store_true", help="print each input that fails, with its translation")
    for name in TEXT_OPTIONS:
        meaning = "an option of the requests (default: the bundle's)"
        parser.add_argument("--" + name.replace("_", "-"), action=argparse.BooleanOptionalAction, help=meaning)
    chosen = parser.parse_args(arguments)
    options: Any = {name: value for name in TEXT_OPTIONS if (value := getattr(chosen, name)) is not None}
    inputs = checks()
    with load(chosen.bundle) as model:
        answers = [generation.best.text for generation in model.generate([check.source for check in inputs], **options)]
    right, all_of_kind = Counter[str](), Counter(check.kind for check in inputs)
    for check, answer in zip(inputs, answers, strict=True):
        faults = check.faults(answer)
        right[check.kind] += not faults
        if faults and chosen.show:
            print(f"{check.source!r}\n    {answer!r}\n    {'; '.join(faults)}")
    for kind, number in all_of_kind.items():
        print(f"{kind:12} {right[kind]:3} of {number}")
    share = right.total() / len(inputs)
    print(f"{'all':12} {right.total():3} of {len(inputs)}, {100 * share:.1f} %")
    return int(share < 0.95)


if __name__ == "__main__":
    raise SystemExit(main())
