// Package svg writes pictures as SVG that have no script and load nothing, with names from outside made safe.
package svg

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Drawing is a picture that is half drawn. Lengths are in pixels, from the upper left; classes are those of its style.
type Drawing struct{ out strings.Builder }

// New begins a picture of this size. Its title is read out where the picture is not seen; its style is CSS.
func New(width, height int, title, style string) *Drawing {
	d := &Drawing{}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width,
		height, width, height)
	d.add("<title>%s</title>\n<style>\n%s</style>\n", Escaped(title), style)
	return d
}

func (d *Drawing) add(format string, args ...any) { fmt.Fprintf(&d.out, format, args...) }

// End returns the picture.
func (d *Drawing) End() []byte {
	d.add("</svg>\n")
	return []byte(d.out.String())
}

// Rect draws a box; a title is shown where the pointer rests.
func (d *Drawing) Rect(class string, x, y, width, height float64, title string) {
	d.add(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"`, class, Pixels(x), Pixels(y), Pixels(width),
		Pixels(height))
	d.close("rect", title)
}

// Circle draws a dot; a title is shown where the pointer rests.
func (d *Drawing) Circle(class string, x, y, radius float64, title string) {
	d.add(`<circle class="%s" cx="%s" cy="%s" r="%s"`, class, Pixels(x), Pixels(y), Pixels(radius))
	d.close("circle", title)
}

// Path draws commands of a path, M and L and so on; nothing where there are none. A title is shown where the pointer
// rests.
func (d *Drawing) Path(class, commands, title string) {
	if commands == "" {
		return
	}
	d.add(`<path class="%s" d="%s"`, class, commands)
	d.close("path", title)
}

// Line draws a straight line; a title is shown where the pointer rests.
func (d *Drawing) Line(class string, x1, y1, x2, y2 float64, title string) {
	d.add(`<line class="%s" x1="%s" x2="%s" y1="%s" y2="%s"`, class, Pixels(x1), Pixels(x2), Pixels(y1), Pixels(y2))
	d.close("line", title)
}

func (d *Drawing) close(element, title string) {
	if title == "" {
		d.add("/>\n")
		return
	}
	d.add("><title>%s</title></%s>\n", Escaped(title), element)
}

// Text writes one line, which begins at x or lies as its class says, on y.
func (d *Drawing) Text(class string, x, y float64, text string) {
	d.add(`<text class="%s" x="%s" y="%s">%s</text>`+"\n", class, Pixels(x), Pixels(y), Escaped(text))
}

// Pixels writes a length with two digits after the point, as many as a screen can show.
func Pixels(x float64) string { return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64) }

// Escaped makes text safe inside of XML, where control characters and broken UTF-8 have no place at all; what turns the
// order of text around is left out too.
func Escaped(text string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r >= 0xFFFE && r <= 0xFFFF {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?")))
}

// NiceStep is the next 1, 2 or 5 times a power of ten from x up; 0 for what is no positive number.
func NiceStep(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return 0
	}
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, times := range []float64{1, 2, 5} {
		if times*power >= x {
			return times * power
		}
	}
	return 10 * power
}
