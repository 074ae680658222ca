// Package words writes numbers as people read them.
package words
