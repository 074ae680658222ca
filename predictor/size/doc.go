// Package size says how one attempt is sized, from what is learned, its input and earlier failures.
package size
