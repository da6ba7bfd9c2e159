"""Makes variants of pairs, as people type texts: in capitals, with placeholders, tags, addresses and names.

Documentation has few of them. A variant is made from a sentence pair of the training split by the same change on both
sides, or from PHRASES, which are our own. The same pairs and the same seed give the same variants.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from attendant.training.data.pairs import Pair, num_words

SEED: Final = 41
MAX_WORDS: Final = 20
"""Longest source that is varied, in words and marks: a long one would cost as much training as several short ones."""

KEPT: Final = re.compile(
    r"https?://\S+|\S+@\S+|</?[a-z][^>]*>|\$?\{+[^{}]*\}+|\$[A-Z_]+|%(?:\d\$|\(\w+\))?[a-z@]|(?<!\w)[~.]?/\S+|[A-Z]:\\\S+"
)
"""Parts that a program reads; their letters keep their case."""

WORD: Final = re.compile(r"(?<![^\s(\"“«'])(?:\d|#?\w[\w.+#:/=-]*\w)(?:\(\w*\))?(?=[,.;:!?)\"”»']*(?:\s|$))")

SYLLABLES: Final = (
    "ba", "be", "bi", "bo", "da", "de", "di", "do", "fa", "fi", "ga", "go", "ha", "he", "jo", "ka", "ke", "ki", "ko",
    "la", "le", "li", "lo", "lu", "ma", "me", "mi", "mo", "na", "ne", "ni", "no", "pa", "pe", "po", "ra", "re", "ri",
    "ro", "sa", "se", "si", "so", "ta", "te", "ti", "to", "va", "vi", "wa", "ya", "za", "ch", "sh", "th", "an", "en",
    "in", "on", "el", "ar", "or", "is", "us", "é", "è", "ö", "ü", "ä", "ñ", "ç", "ł", "š", "ž", "ø", "å", "ć", "ğ",
)  # fmt: skip
SCRIPTS: Final = (
    (0x0391, 0x03C9),
    (0x0410, 0x044F),
    (0x05D0, 0x05EA),
    (0x0627, 0x063A),
    (0x3042, 0x3093),
    (0x4E00, 0x6000),
)
EMOJI: Final = ((0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6C5), (0x2600, 0x26FF), (0x1F900, 0x1F9FF))
TAGS: Final = ("b", "i", "em", "strong", "code", "u", "kbd", "span", "a", "p", "li", "h1", "td", "mark")
FIELDS: Final = (
    "name", "user", "file", "count", "total", "size", "date", "time", "title", "path", "url", "id", "value", "index",
    "page", "user_name", "fileName", "num", "items", "error", "email", "host", "port", "version", "language", "key",
    "code", "product", "price", "first_name", "amount", "n", "message", "label", "folder", "days",
)  # fmt: skip
DOMAINS: Final = (
    "com", "org", "net", "fr", "de", "io", "eu", "co.uk", "info", "dev", "ca", "be",
)  # fmt: skip
ENDINGS: Final = (
    "txt", "pdf", "png", "csv", "odt", "ods", "json", "html", "py", "toml", "conf", "log", "zip", "mp3", "docx",
)  # fmt: skip
FOLDERS: Final = (
    "usr", "etc", "home", "var", "tmp", "opt", "data", "docs", "src", "share", "local", "lib", "Documents",
    "Downloads", "images", "backup",
)  # fmt: skip


@dataclass(slots=True)
class Filler:
    """Draws parts of texts that are the same in every language: names, numbers, placeholders, addresses.

    Attributes:
        random: the generator that everything is drawn from.
    """

    random: random.Random
    _kinds: list[Callable[[], str]] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = [
            *[self.stand_in] * 4,
            *[self.placeholder] * 4,
            *[self.name] * 4,
            *[self.number] * 2,
            self.url,
            self.email,
            self.path,
            self.date,
            self.identifier,
        ]

    def any(self) -> str:
        return self.random.choice(self._kinds)()

    def stand_in(self) -> str:
        """Returns a number in braces, as a server writes it for a part that must come back unchanged."""
        return f"{{{self.random.randint(1, self.random.choice((3, 9, 20)))}}}"

    def placeholder(self) -> str:
        name = self.random.choice(FIELDS)
        forms = (
            *(f"{{{name}}}",) * 3, f"{{{{{name}}}}}", f"{{{{ {name} }}}}", f"${{{name.upper()}}}", f"${{{name}}}",
            f"${name.upper()}", *("%s", "%d") * 2, f"%{self.random.randint(1, 4)}$s", f"%({name})s", "%i", "%u",
            f"{{{self.random.randint(0, 9)}}}", "{}", f"%{self.random.randint(1, 4)}$d", "%@",
        )  # fmt: skip
        return self.random.choice(forms)

    def word(self) -> str:
        return "".join(self.random.choices(SYLLABLES, k=self.random.randint(2, 4)))

    def plain_word(self) -> str:
        return unicodedata.normalize("NFKD", self.word()).encode("ascii", "ignore").decode() or "x"

    def name(self) -> str:
        """Returns a name: a made-up word, two of them, a product's, or letters of another script."""
        roll = self.random.random()
        if roll < 0.15:
            first, last = self.random.choice(SCRIPTS)
            return "".join(chr(self.random.randint(first, last)) for _ in range(self.random.randint(2, 6)))
        if roll < 0.3:
            return self.plain_word().capitalize() + self.plain_word().upper()[:3]
        if roll < 0.5:
            return f"{self.word().capitalize()} {self.word().capitalize()}"
        return self.word().capitalize()

    def emoji(self) -> str:
        return "".join(
            chr(self.random.randint(*self.random.choice(EMOJI))) for _ in range(self.random.choice((1, 1, 1, 2, 3)))
        )

    def number(self) -> str:
        whole = self.random.randint(2, 10 ** self.random.randint(1, 6))
        return self.random.choice(
            (*(f"{whole}",) * 4, f"{whole}.{self.random.randint(0, 20)}.{self.random.randint(0, 9)}")
        )

    def url(self) -> str:
        parts = [self.plain_word() for _ in range(self.random.randint(0, 2))]
        start = self.random.choice(("https://", "https://www.", "http://"))
        address = "/".join([f"{start}{self.plain_word()}.{self.random.choice(DOMAINS)}", *parts])
        return address + self.random.choice(
            ("", "", "/", f"?id={self.random.randint(1, 999)}", f"#{self.plain_word()}")
        )

    def email(self) -> str:
        user = self.random.choice((self.plain_word(), f"{self.plain_word()}.{self.plain_word()}"))
        return f"{user}@{self.plain_word()}.{self.random.choice(DOMAINS)}"

    def path(self) -> str:
        folders = self.random.sample(FOLDERS, self.random.randint(1, 3))
        file = f"{self.plain_word()}.{self.random.choice(ENDINGS)}"
        windows = "C:\\" + "\\".join([*folders, file])
        return self.random.choice(
            (file, file, "/" + "/".join([*folders, file]), "~/" + "/".join([*folders, file]), windows)
        )

    def date(self) -> str:
        year, month, day = self.random.randint(1950, 2040), self.random.randint(1, 12), self.random.randint(1, 28)
        forms = (f"{year}-{month:02}-{day:02}", f"{day:02}/{month:02}/{year}", str(year), f"{month + 8}:{day + 20}")
        return self.random.choice(forms)

    def identifier(self) -> str:
        word, other = self.random.choice(FIELDS), self.plain_word()
        return self.random.choice((f"--{other}", f"{word}_{other}", f"{other.upper()}_{word.upper()}", f"{other}()"))


def variants(sentences: Sequence[Pair], num_pairs: int, seed: int = SEED) -> Iterator[Pair]:
    """Yields the variants of a training split.

    Args:
        sentences: the split's sentences.
        num_pairs: its number of pairs, of which each kind of variants is a share.
    """
    drawn = random.Random(seed)
    filler = Filler(drawn)
    # A sentence that is the same on both sides was left untranslated.
    short = [pair for pair in sentences if pair.source != pair.target and num_words(pair.source) <= MAX_WORDS]
    kinds: dict[Callable[[Pair], Pair | None], float] = {
        capitals: 0.11,
        title: 0.015,
        typed_quickly: 0.03,
        partial(with_slots, filler=filler): 0.12,
        partial(with_tags, filler=filler): 0.05,
        partial(with_affix, filler=filler): 0.05,
    }
    for vary, share in kinds.items():
        num_wanted = round(share * num_pairs)
        for pair in drawn.sample(short, len(short)):
            if not num_wanted:
                break
            variant = vary(pair)
            if variant is not None and variant.source != pair.source:
                num_wanted -= 1
                # Marks and names also occur in capitals.
                yield capitals(variant) if vary is not capitals and drawn.random() < 0.1 else variant
    for _ in range(round(0.03 * num_pairs)):
        first = drawn.randrange(len(short) - 3)
        joined = [pair for pair in short[first : first + drawn.randint(2, 3)] if pair.source.endswith((".", "!", "?"))]
        if len(joined) > 1:
            yield Pair(" ".join(pair.source for pair in joined), " ".join(pair.target for pair in joined))
    yield from _phrases(filler, num_pairs)


def capitals(pair: Pair) -> Pair:
    """Returns both sides in capitals, with their accents, except for KEPT."""
    return Pair(_in_capitals(pair.source), _in_capitals(pair.target))


def _in_capitals(text: str) -> str:
    parts, end = [], 0
    for match in KEPT.finditer(text):
        parts += [text[end : match.start()].upper(), match[0]]
        end = match.end()
    return "".join([*parts, text[end:].upper()])


def title(pair: Pair) -> Pair | None:
    """Returns the pair with a title's capitals in English; French writes a title as it writes a sentence."""
    if not pair.source.endswith(".") or not pair.target.endswith("."):
        return None
    source = re.sub(r"(?<![^\s(])[a-z](?=[a-z]{2})", lambda match: match[0].upper(), pair.source[:-1])
    return Pair(source, pair.target[:-1].rstrip())


def typed_quickly(pair: Pair) -> Pair | None:
    """Returns the pair without a capital at the beginning and without a full stop at the end."""
    if not (pair.source[1:2].islower() and pair.source.endswith(".") and pair.target.endswith(".")):
        return None
    return Pair(pair.source[0].lower() + pair.source[1:-1], pair.target[0].lower() + pair.target[1:-1].rstrip())


def with_slots(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with drawn parts instead of one or two shared words; None if the sides share no word."""
    words = shared_words(pair)
    if not words:
        return None
    for word in filler.random.sample(words, min(len(words), filler.random.choice((1, 1, 2)))):
        pair = _replaced(pair, word, filler.any())
    return pair


def with_tags(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with tags, or their stand-ins, around a shared word or around both texts; or None."""
    words = shared_words(pair)
    begin, end = _tags(filler)
    if words and filler.random.random() < 0.7:
        word = filler.random.choice(words)
        return _replaced(pair, word, f"{begin}{word}{end}")
    return Pair(f"{begin}{pair.source}{end}", f"{begin}{pair.target}{end}") if filler.random.random() < 0.5 else None


def with_affix(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with an emoji, a name or another part before it, after it, or in brackets; or None."""
    part = filler.emoji() if filler.random.random() < 0.5 else filler.any()
    roll = filler.random.random()
    if roll < 0.3:
        return Pair(f"{part} {pair.source}", f"{part} {pair.target}")
    if roll < 0.6:
        return Pair(f"{pair.source} {part}", f"{pair.target} {part}")
    if roll < 0.75:
        return Pair(f"{part}: {pair.source}", f"{part} : {pair.target}")
    if not pair.source.endswith(".") or not pair.target.endswith("."):
        return None
    source, target = pair.source[:-1], pair.target[:-1].rstrip()
    if roll < 0.9:
        return Pair(f"{source} ({part}).", f"{target} ({part}).")
    return Pair(f"{source}: {part}", f"{target} : {part}")


def _tags(filler: Filler) -> tuple[str, str]:
    if filler.random.random() < 0.35:
        first = filler.random.randint(1, 8)
        return f"{{{first}}}", f"{{{first + 1}}}"
    tag = filler.random.choice(TAGS)
    content = f' href="{filler.url()}"' if tag == "a" else f' class="{filler.plain_word()}"' if tag == "span" else ""
    return f"<{tag}{content}>", f"</{tag}>"


def shared_words(pair: Pair) -> list[str]:
    """Returns the words that occur exactly once on both sides: names, numbers, commands, some nouns."""
    sources, targets = WORD.findall(pair.source), WORD.findall(pair.target)
    return [
        word
        for word in sources
        if word in targets
        and (
            not (word.isalpha() and word.islower())
            or re.search(rf"\b(?:the|an?|of|this) {re.escape(word)}", pair.source)
        )
        and pair.source.count(word) == pair.target.count(word) == 1
    ]


def _replaced(pair: Pair, word: str, text: str) -> Pair:
    return Pair(pair.source.replace(word, text), pair.target.replace(word, text))


def _phrases(filler: Filler, num_pairs: int) -> Iterator[Pair]:
    """Yields PHRASES with drawn fillings and without them, some in capitals or typed quickly."""
    pairs = [Pair(*line.split(" | ")) for line in PHRASES.strip().split("\n")]
    for pair in pairs:
        yield pair if "@" not in pair.source else _filled(pair, filler)
    for _ in range(round(0.07 * num_pairs) - len(pairs)):
        pair = _filled(filler.random.choice(pairs), filler)
        roll = filler.random.random()
        if roll < 0.1:
            pair = capitals(pair)
        elif roll < 0.2:
            pair = typed_quickly(pair) or pair
        elif roll < 0.3:
            pair = with_affix(pair, filler) or pair
        elif roll < 0.35:
            other = _filled(filler.random.choice(pairs), filler)
            pair = Pair(f"{pair.source} {other.source}", f"{pair.target} {other.target}")
        yield pair


def _filled(pair: Pair, filler: Filler) -> Pair:
    """Returns a phrase whose slots (`@name`, `@count`, `@file`, `@date`, `@url`, `@mail`, `@any`) are filled."""
    kinds: dict[str, Sequence[Callable[[], str]]] = {
        "@name": (filler.name, filler.name, filler.placeholder, filler.stand_in),
        "@count": (filler.number, filler.placeholder, filler.stand_in),
        "@file": (filler.path, filler.placeholder, filler.stand_in),
        "@date": (filler.date, filler.placeholder, filler.stand_in),
        "@url": (filler.url, filler.url, filler.stand_in),
        "@mail": (filler.email, filler.email, filler.stand_in),
        "@any": (filler.any,),
    }
    for slot, draws in kinds.items():
        if slot in pair.source:
            pair = _replaced(pair, slot, filler.random.choice(draws)())
    return pair


PHRASES: Final = """
Hello! | Bonjour !
Hello @name! | Bonjour @name !
Hi @name, how are you? | Salut @name, comment allez-vous ?
Hello world | Bonjour le monde
Good morning. | Bonjour.
Good evening, @name. | Bonsoir @name.
Good night. | Bonne nuit.
Goodbye. | Au revoir.
See you tomorrow. | À demain.
See you soon, @name! | À bientôt @name !
How are you? | Comment allez-vous ?
I am fine, thank you. | Je vais bien, merci.
Thank you. | Merci.
Thank you very much. | Merci beaucoup.
Thank you for your help. | Merci pour votre aide.
Thank you, @name! | Merci @name !
You are welcome. | Je vous en prie.
Please. | S'il vous plaît.
Yes, please. | Oui, s'il vous plaît.
No, thank you. | Non, merci.
Excuse me. | Excusez-moi.
I am sorry. | Je suis désolé.
Welcome! | Bienvenue !
Welcome back, @name! | Bon retour, @name !
Welcome to @name. | Bienvenue dans @name.
What is your name? | Comment vous appelez-vous ?
My name is @name. | Je m'appelle @name.
I live in @name. | J'habite à @name.
Where do you live? | Où habitez-vous ?
Where is the station? | Où est la gare ?
Where are you? | Où êtes-vous ?
What time is it? | Quelle heure est-il ?
What is this? | Qu'est-ce que c'est ?
What does this mean? | Qu'est-ce que cela signifie ?
Who is there? | Qui est là ?
Why not? | Pourquoi pas ?
How much is it? | Combien cela coûte-t-il ?
It costs @count euros. | Cela coûte @count euros.
I don't know. | Je ne sais pas.
I don't understand. | Je ne comprends pas.
I understand. | Je comprends.
I think so. | Je pense que oui.
I agree with you. | Je suis d'accord avec vous.
I like this book. | J'aime ce livre.
I love this song. | J'adore cette chanson.
I love my dog. | J'aime mon chien.
She loves him. | Elle l'aime.
We love music. | Nous aimons la musique.
I want to eat. | Je veux manger.
I want to sleep. | Je veux dormir.
I am hungry. | J'ai faim.
I am tired. | Je suis fatigué.
I am at home. | Je suis à la maison.
I am ready. | Je suis prêt.
I have a question. | J'ai une question.
I have a problem. | J'ai un problème.
I have two children. | J'ai deux enfants.
I need help. | J'ai besoin d'aide.
I need your help. | J'ai besoin de votre aide.
I need more time. | J'ai besoin de plus de temps.
Can you help me? | Pouvez-vous m'aider ?
Can I help you? | Puis-je vous aider ?
Could you repeat, please? | Pourriez-vous répéter, s'il vous plaît ?
Do you speak French? | Parlez-vous français ?
I speak a little French. | Je parle un peu français.
We are happy. | Nous sommes heureux.
They are here. | Ils sont ici.
He is my brother. | C'est mon frère.
She is my sister. | C'est ma sœur.
@name is my friend. | @name est mon ami.
@name works at @any. | @name travaille chez @any.
@name lives in Paris. | @name habite à Paris.
He was born in @date. | Il est né en @date.
The weather is nice today. | Il fait beau aujourd'hui.
It is raining. | Il pleut.
It is cold. | Il fait froid.
It is late. | Il est tard.
It is very easy. | C'est très facile.
It is not possible. | Ce n'est pas possible.
That is a good idea. | C'est une bonne idée.
That is true. | C'est vrai.
This is my house. | C'est ma maison.
This is a test. | C'est un test.
The house is big. | La maison est grande.
The car is red. | La voiture est rouge.
The dog is sleeping. | Le chien dort.
The child is playing. | L'enfant joue.
The book is on the table. | Le livre est sur la table.
The door is open. | La porte est ouverte.
The train leaves at @date. | Le train part à @date.
The meeting starts at @date. | La réunion commence à @date.
The meeting is on @date. | La réunion a lieu le @date.
We will meet tomorrow. | Nous nous verrons demain.
I will call you tomorrow. | Je vous appellerai demain.
Call me at @count. | Appelez-moi au @count.
Write to me at @mail. | Écrivez-moi à @mail.
I went to the market yesterday. | Je suis allé au marché hier.
We ate in a restaurant. | Nous avons mangé au restaurant.
He bought a new car. | Il a acheté une nouvelle voiture.
She reads the newspaper every day. | Elle lit le journal tous les jours.
Have a nice day! | Bonne journée !
Have a nice weekend. | Bon week-end.
Happy birthday, @name! | Joyeux anniversaire, @name !
Happy new year! | Bonne année !
Congratulations! | Félicitations !
Good luck! | Bonne chance !
Enjoy your meal! | Bon appétit !
Be careful! | Faites attention !
Wait a moment, please. | Attendez un instant, s'il vous plaît.
Come here. | Venez ici.
Sit down, please. | Asseyez-vous, s'il vous plaît.
Listen to me. | Écoutez-moi.
Open the window. | Ouvrez la fenêtre.
Close the door. | Fermez la porte.
Don't forget your keys. | N'oubliez pas vos clés.
Don't worry. | Ne vous inquiétez pas.
Let's go! | Allons-y !
Help! | À l'aide !
Warning! | Attention !
Warning: @any | Attention : @any
Error: @any | Erreur : @any
Note: this cannot be undone. | Remarque : cette action est irréversible.
Name: @name | Nom : @name
Date: @date | Date : @date
E-mail: @mail | E-mail : @mail
Website: @url | Site web : @url
Phone: @count | Téléphone : @count
Address: @any | Adresse : @any
Version @count | Version @count
Page @count of @any | Page @count sur @any
@count files | @count fichiers
@count files deleted | @count fichiers supprimés
@count files were deleted. | @count fichiers ont été supprimés.
@count files were copied to @file. | @count fichiers ont été copiés vers @file.
@count messages | @count messages
You have @count new messages. | Vous avez @count nouveaux messages.
You have @count unread messages, @name. | Vous avez @count messages non lus, @name.
@count items selected | @count éléments sélectionnés
@count results found for @any | @count résultats trouvés pour @any
@count users are online. | @count utilisateurs sont en ligne.
@count days left | @count jours restants
@count minutes ago | il y a @count minutes
@name sent you a message. | @name vous a envoyé un message.
@name invited you to @any. | @name vous a invité à @any.
@name added @count photos. | @name a ajouté @count photos.
@name commented on your document. | @name a commenté votre document.
Are you sure? | Êtes-vous sûr ?
Are you sure you want to delete @file? | Voulez-vous vraiment supprimer @file ?
Do you want to save the changes? | Voulez-vous enregistrer les modifications ?
Do you want to save the changes to @file? | Voulez-vous enregistrer les modifications apportées à @file ?
Do you want to continue? | Voulez-vous continuer ?
The file @file does not exist. | Le fichier @file n'existe pas.
The file @file already exists. | Le fichier @file existe déjà.
The file @file could not be opened. | Impossible d'ouvrir le fichier @file.
Cannot open file @file | Impossible d'ouvrir le fichier @file
Could not connect to @url. | Impossible de se connecter à @url.
Could not find @any. | @any est introuvable.
Loading @file... | Chargement de @file...
Loading... | Chargement...
Please wait... | Veuillez patienter...
Downloading @count of @any files | Téléchargement de @count fichiers sur @any
Saved to @file | Enregistré dans @file
Saved on @date | Enregistré le @date
Last updated: @date | Dernière mise à jour : @date
Created by @name on @date | Créé par @name le @date
Posted by @name | Publié par @name
Open @url in your browser. | Ouvrez @url dans votre navigateur.
Visit @url for more information. | Visitez @url pour plus d'informations.
See @url | Voir @url
For help, write to @mail. | Pour obtenir de l'aide, écrivez à @mail.
A message was sent to @mail. | Un message a été envoyé à @mail.
Your password has been changed. | Votre mot de passe a été modifié.
Your account has been created. | Votre compte a été créé.
Your order @any has been shipped. | Votre commande @any a été expédiée.
Your session expires in @count minutes. | Votre session expire dans @count minutes.
Your code is @count. | Votre code est @count.
Enter your name. | Saisissez votre nom.
Enter your e-mail address. | Saisissez votre adresse e-mail.
Enter a value between @count and @any. | Saisissez une valeur comprise entre @count et @any.
Enter the password for @name. | Saisissez le mot de passe de @name.
The value must be at least @count. | La valeur doit être au moins @count.
@any is required. | @any est obligatoire.
@any is not valid. | @any n'est pas valide.
Unknown option: @any | Option inconnue : @any
Invalid value for @any: @count | Valeur non valide pour @any : @count
Usage: @any | Utilisation : @any
Press @any to continue. | Appuyez sur @any pour continuer.
Click here to download @file. | Cliquez ici pour télécharger @file.
Click @any to save. | Cliquez sur @any pour enregistrer.
Run @any to install @name. | Exécutez @any pour installer @name.
Set @any to @count. | Définissez @any sur @count.
Copy @file to @any. | Copiez @file vers @any.
Delete @file? | Supprimer @file ?
Rename @file to @any | Renommer @file en @any
Edit the file @file. | Modifiez le fichier @file.
Save your changes. | Enregistrez vos modifications.
Save the file as @file. | Enregistrez le fichier sous @file.
Log in | Se connecter
Log in as @name | Se connecter en tant que @name
Log out | Se déconnecter
Sign up | S'inscrire
Settings | Paramètres
Search | Rechercher
Search in @any | Rechercher dans @any
Cancel | Annuler
Delete | Supprimer
Save | Enregistrer
Back | Retour
Next | Suivant
Previous | Précédent
Yes | Oui
No | Non
OK | OK
Close | Fermer
Help | Aide
Home | Accueil
Today | Aujourd'hui
Yesterday | Hier
Tomorrow | Demain
Monday, @date | Lundi, @date
Share this page | Partager cette page
Print this page | Imprimer cette page
Read more | En savoir plus
Learn more about @name | En savoir plus sur @name
Contact us | Contactez-nous
Contact us at @mail. | Contactez-nous à @mail.
About @name | À propos de @name
New in version @count | Nouveautés de la version @count
All rights reserved. | Tous droits réservés.
Terms of use | Conditions d'utilisation
Privacy policy | Politique de confidentialité
Do not turn off your computer. | N'éteignez pas votre ordinateur.
The computer must be restarted. | L'ordinateur doit être redémarré.
The server is not responding. | Le serveur ne répond pas.
The server @any is down. | Le serveur @any est en panne.
The connection was lost. | La connexion a été perdue.
The disk is full. | Le disque est plein.
The battery is low. | La batterie est faible.
No results. | Aucun résultat.
No file selected | Aucun fichier sélectionné
Something went wrong. | Une erreur s'est produite.
Try again later. | Réessayez plus tard.
Access denied. | Accès refusé.
Access to @file denied. | Accès à @file refusé.
Price: @count EUR | Prix : @count EUR
Total: @count | Total : @count
From @date to @any | Du @date au @any
From @name to @any | De @name à @any
@name and @any | @name et @any
@name or @any | @name ou @any
"""
"""English and French, with parts to fill in; our own words."""
