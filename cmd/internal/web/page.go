package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// dist is the page as `npm run build` in ui makes it. It is committed, so that building the engine needs no Node.
//
//go:embed dist
var dist embed.FS

// pagePolicy lets the page load and ask only what this server has: no script, style, picture or answer comes from
// elsewhere.
const pagePolicy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// pageTypes are the content types by extension. The machine's own table is not asked: what it says of scripts differs,
// and a browser runs no script of another type.
var pageTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// pageFile is one file of the page.
type pageFile struct {
	kind, tag, cache string
	text             []byte
}

// Page answers GET and HEAD of the page: its files, and for the address of each of its views the document that shows
// them. What is neither is answered with 404. Files whose names carry a digest of what is in them may be kept for ever,
// others are asked for again.
type Page struct {
	files map[string]pageFile // by address
}

// runAddress is where the page of a run is.
const runAddress = "/runs/{run...}"

// views are the addresses of the page, besides those of runs; ui/src/lib/route.ts reads them.
var views = []string{"/", "/decisions", "/capacity", "/compare", "/costs"}

// NewPage returns the page that is built into the program.
func NewPage() *Page {
	files, err := pageFiles(dist)
	if err != nil {
		panic(err) // what is embedded is fixed when this is compiled, and the tests have read it
	}
	return &Page{files: files}
}

// ServeHTTP answers one request.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is only read", http.StatusMethodNotAllowed)
		return
	}
	address := r.URL.Path
	if run, ofRun := strings.CutPrefix(address, "/runs/"); ofRun && run != "" || slices.Contains(views, address) {
		address = "/index.html"
	}
	file, found := p.files[address]
	if !found {
		http.Error(w, "there is no such page; / shows the runs", http.StatusNotFound)
		return
	}
	file.serve(w, r)
}

// withoutRun answers for the address of a run that there is not: with the document, which says so, as not found.
func (p *Page) withoutRun(w http.ResponseWriter, r *http.Request) {
	file := p.files["/index.html"]
	header := w.Header()
	header.Set("Content-Security-Policy", pagePolicy)
	header.Set("Content-Type", file.kind)
	header.Set("Cache-Control", file.cache)
	w.WriteHeader(http.StatusNotFound)
	if r.Method == http.MethodGet {
		_, _ = w.Write(file.text) // the client went away; there is nobody to tell
	}
}

// addresses are where the page has something to show, as patterns of a mux.
func (p *Page) addresses() []string {
	addresses := slices.AppendSeq([]string{runAddress}, maps.Keys(p.files))
	for _, view := range views {
		if view == "/" {
			view = "/{$}"
		}
		addresses = append(addresses, view)
	}
	return addresses
}

func (f pageFile) serve(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", f.kind)
	header.Set("Cache-Control", f.cache)
	header.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if r.Method == http.MethodGet {
		_, _ = w.Write(f.text) // the client went away; there is nobody to tell
	}
}

// pageFiles reads what was built, by its address.
func pageFiles(from fs.FS) (map[string]pageFile, error) {
	files := map[string]pageFile{}
	err := fs.WalkDir(from, "dist", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		kind, known := pageTypes[path.Ext(name)]
		if !known {
			return fmt.Errorf("%s has no content type", name)
		}
		digest := sha256.Sum256(text)
		file := pageFile{kind: kind, tag: `"` + hex.EncodeToString(digest[:16]) + `"`, cache: "no-cache", text: text}
		if strings.HasPrefix(name, "dist/assets/") {
			file.cache = "public, max-age=31536000, immutable"
		}
		files[strings.TrimPrefix(name, "dist")] = file
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the page: %w", err)
	}
	return files, nil
}
