"""The caption of a figure: what it shows, what was trained, and how to read it; beside it as text and as LaTeX."""

from __future__ import annotations

from dataclasses import dataclass

from comt_cli.report.latex import escaped

FIGURE_FILES = ("png", "pdf", "txt", "tex", "csv")
"""The files of a figure, in the order in which they are written: picture, page, caption, and the numbers last."""
_IN_FILE_NAMES = {
    "%": r"\csname @percentchar\endcsname ",  # in any other way it would begin a comment
    "\\": r"\csname @backslashchar\endcsname ",
    "{": r"\csname @charlb\endcsname ",
    "}": r"\csname @charrb\endcsname ",
    **{letter: rf"\string{letter}" for letter in "#~^"},
}
"""What LaTeX does not read as it stands in the name of a file; it does underscores, dollar signs and ampersands."""


@dataclass(frozen=True)
class Caption:
    """`title` is the question that the figure answers, `trained` which networks, on what and for how long.

    `reading` explains the marks, `findings` say what the numbers come to. All of `trained` stands in the picture too: a
    picture that is copied into slides keeps saying what it is of.
    """

    title: str
    trained: str = ""
    reading: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """Title, training, reading and findings, each a sentence or several."""
        return [_sentence(each) for each in (self.title, self.trained, *self.reading, *self.findings) if each]

    def text(self) -> str:
        """One paragraph, for a document of any kind."""
        return " ".join(self.sentences) + "\n"

    def latex(self, stem: str, label: str, share: float = 1.0) -> str:
        r"""A `figure` float to `\input` beside `<stem>.pdf`, with the title in bold: `\label{fig:<label>}`. The picture
        takes this share of a line's width."""
        title, *others = self.sentences
        said = " ".join([rf"\textbf{{{escaped(title)}}}", *map(escaped, others)])
        key = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in label)
        file = "".join(_IN_FILE_NAMES.get(letter, letter) for letter in stem)
        width = r"\linewidth" if share > 0.99 else rf"{share:.2f}\linewidth"
        return "\n".join(
            [
                r"% Needs \usepackage{graphicx}, and \graphicspath{{...}} where the PDF is in another folder.",
                r"\begin{figure}[htbp]",
                r"\centering",
                rf"\includegraphics[width={width}]{{{file}.pdf}}",
                rf"\caption{{{said}}}",
                rf"\label{{fig:{key}}}",
                r"\end{figure}",
                "",
            ]
        )


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
