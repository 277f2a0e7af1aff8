"""Pages that a person reads: one file, nothing fetched, text of the data inert. Shared by `packer stats --html` and `trainer compare --html`.

    page       the shell: a strict Content-Security-Policy by hash, style and scripts inside, data as JSON that cannot end its element
    parts      tables, figures, views to choose between, cards of key figures: jinja templates with autoescape
    svg        one function that makes an element; every attribute and text is escaped
    axes       round ticks, and numbers as text
    charts     histogram, bars, lanes
    lines      curves, intervals
    buffers    buffers drawn as blocks and padding

A chart is an <svg> as wide as its column with places in percent, so that text keeps its size on a telephone. Each stands in a figure with its table
behind it. Colours are classes that the style sheet has for light and dark.
"""
