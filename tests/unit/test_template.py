from __future__ import annotations

import pytest

from worker.template import TemplateInvalid, require_balanced


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no action, and a }} of its own",
        "{{ .Prompt }}",
        "{{- if .System }}{{ .System }}{{ else if .Prompt }}{{ .Prompt }}{{- end -}}",
        "{{ range $i, $m := .Messages }}{{ with $m }}{{ .Content }}{{ end }}{{ end }}",
        '{{/* a comment with {{ and }} and "one quote */}}x',
        "{{- /* another */ -}}",
        '{{ "}} \\" {{" }}',
        "{{ `}}` }}{{ '}' }}",
        "{{ endpoint }}{{ iffy }}{{ .end }}",
        "{{ if and .A\n  .B }}x{{ end }}",
    ],
)
def test_a_template_may_have_whatever_is_closed(text: str) -> None:
    require_balanced(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ .Nope", "the template's '{{ .Nope' is not closed: it needs its }}"),
        ("{{ .A {{ .B }}", "the template's '{{ .A {{ .B }}' is not closed"),
        ("{{ .A }", "is not closed"),
        ('{{ "a }}', "is not closed"),
        ("{{/* a }}", "is not closed"),
        ("{{ if .A }}x", "the template's {{ if }} is not closed: it needs an {{ end }}"),
        ("{{ range .A }}{{ if .B }}{{ end }}", "the template's {{ range }} is not closed"),
        ("x{{ end }}", "the template has an {{ end }} too many"),
        ("{{ if .A }}{{- end -}}{{ end }}", "the template has an {{ end }} too many"),
    ],
)
def test_what_is_plainly_broken_is_told(text: str, words: str) -> None:
    with pytest.raises(TemplateInvalid) as caught:
        require_balanced(text)
    assert words in str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("filler", [" ", "a", "'", '"', "-", "/*", "\\"])
def test_a_long_broken_template_is_refused_at_once(filler: str) -> None:
    with pytest.raises(TemplateInvalid):
        require_balanced("{{ " + filler * 100_000)
