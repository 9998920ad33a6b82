module overlay

go 1.26
