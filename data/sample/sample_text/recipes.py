"""Twelve recipes, each for four people.

Why: apart from the chats made of them (`kitchen.py`), so that a dish can be added without reading code.

Example: `DISHES[0].amounts[0]` is `("red lentils", 240, "g")`.
"""

from typing import NamedTuple


class Dish(NamedTuple):
    """A recipe for four."""

    name: str
    kind: str
    minutes: int
    amounts: tuple[tuple[str, int, str], ...]  # what, how much for four, unit
    steps: tuple[str, ...]
    tip: str
    keeps: str


DISHES = (
    Dish(
        "lentil soup",
        "winter starter",
        45,
        (
            ("red lentils", 240, "g"),
            ("onions", 2, ""),
            ("carrots", 3, ""),
            ("vegetable stock", 1200, "ml"),
            ("cumin", 4, "g"),
        ),
        (
            "Chop the onions and carrots and soften them in a little oil for eight minutes.",
            "Stir in the cumin until it smells warm, which takes about a minute.",
            "Add the lentils and the stock and bring everything to the boil.",
            "Simmer gently for 25 minutes and blend half of the soup.",
        ),
        "A squeeze of lemon at the end wakes the whole pot up",
        "three days in the fridge and three months in the freezer",
    ),
    Dish(
        "mushroom risotto",
        "main course",
        40,
        (
            ("risotto rice", 320, "g"),
            ("mushrooms", 400, "g"),
            ("shallots", 2, ""),
            ("stock", 1000, "ml"),
            ("Parmesan", 60, "g"),
        ),
        (
            "Fry the mushrooms in a hot pan until they are brown and set them aside.",
            "Soften the shallots in butter and toast the rice for two minutes.",
            "Add the hot stock a ladle at a time and stir until it is drunk up.",
            "After 18 minutes fold in the mushrooms and the cheese and rest the pot for two minutes.",
        ),
        "Keep the stock hot, or each ladle will stop the cooking",
        "one day in the fridge, and what is left makes good rice cakes",
    ),
    Dish(
        "apple crumble",
        "pudding",
        55,
        (
            ("apples", 800, "g"),
            ("flour", 180, "g"),
            ("butter", 100, "g"),
            ("brown sugar", 90, "g"),
            ("cinnamon", 2, "g"),
        ),
        (
            "Heat the oven to 180 °C.",
            "Peel and slice the apples and lay them in a dish with the cinnamon.",
            "Rub the butter into the flour until it looks like crumbs, then stir in the sugar.",
            "Spread the crumbs over the fruit and bake for 35 minutes.",
        ),
        "Press the crumbs lightly together in places, so that the top has lumps",
        "two days, covered, at room temperature",
    ),
    Dish(
        "potato salad",
        "side dish",
        35,
        (
            ("waxy potatoes", 1000, "g"),
            ("red onions", 1, ""),
            ("mustard", 20, "g"),
            ("vinegar", 40, "ml"),
            ("oil", 80, "ml"),
        ),
        (
            "Boil the potatoes in their skins for about 20 minutes.",
            "Whisk the mustard, the vinegar and the oil to a dressing.",
            "Peel and slice the potatoes while they are still warm.",
            "Turn them in the dressing with the chopped onion and let them stand.",
        ),
        "Warm potatoes drink the dressing; cold ones only wear it",
        "two days in the fridge",
    ),
    Dish(
        "vegetable curry",
        "main course",
        50,
        (
            ("chickpeas", 480, "g"),
            ("coconut milk", 400, "ml"),
            ("spinach", 200, "g"),
            ("tomatoes", 4, ""),
            ("curry powder", 12, "g"),
        ),
        (
            "Fry the curry powder in oil for a minute over a low flame.",
            "Add the chopped tomatoes and cook them down to a thick sauce.",
            "Pour in the coconut milk and the chickpeas and simmer for 20 minutes.",
            "Stir in the spinach and serve as soon as it has wilted.",
        ),
        "Salt the tomatoes early, for they give their juice sooner",
        "four days in the fridge, and it tastes better on the second",
    ),
    Dish(
        "white bread",
        "plain loaf",
        180,
        (("strong flour", 500, "g"), ("water", 320, "ml"), ("salt", 10, "g"), ("dry yeast", 7, "g")),
        (
            "Mix everything to a rough dough and leave it for ten minutes.",
            "Knead for eight minutes until the dough is smooth.",
            "Let it rise under a cloth until it has doubled, about an hour.",
            "Shape a loaf, let it rise again for 40 minutes and bake it at 220 °C for half an hour.",
        ),
        "Knock on the bottom of the loaf: it is done when it sounds hollow",
        "three days in a bread bin, or sliced in the freezer",
    ),
    Dish(
        "tomato sauce",
        "slow companion of pasta",
        60,
        (("tinned tomatoes", 800, "g"), ("garlic cloves", 3, ""), ("olive oil", 50, "ml"), ("basil", 15, "g")),
        (
            "Warm the sliced garlic in the oil until it is just golden.",
            "Add the tomatoes and break them up with a spoon.",
            "Simmer without a lid for 45 minutes and stir now and then.",
            "Tear in the basil when the pot is off the heat.",
        ),
        "A pinch of sugar helps when the tomatoes are sharp",
        "five days in a jar in the fridge",
    ),
    Dish(
        "spinach pie",
        "main course",
        75,
        (("spinach", 600, "g"), ("feta", 200, "g"), ("eggs", 3, ""), ("filo pastry", 250, "g"), ("dill", 15, "g")),
        (
            "Wilt the spinach in a pan and press out the water.",
            "Mix it with the crumbled cheese, the eggs and the dill.",
            "Line an oiled tin with half of the pastry, brushing every sheet with oil.",
            "Fill it, cover it with the rest and bake at 190 °C for 45 minutes.",
        ),
        "Cut the top into squares before baking, because the pastry shatters afterwards",
        "two days; warm it in the oven and not in the microwave",
    ),
    Dish(
        "rice pudding",
        "pudding",
        50,
        (("pudding rice", 160, "g"), ("milk", 1000, "ml"), ("sugar", 60, "g"), ("vanilla pods", 1, "")),
        (
            "Bring the milk to the boil with the split vanilla pod.",
            "Rain in the rice and the sugar and stir well.",
            "Cook over the lowest flame for 40 minutes and stir every few minutes.",
            "Take out the pod and let the pudding cool for a while; it thickens as it stands.",
        ),
        "Rinse the pot with cold water first and the milk will not catch so easily",
        "two days in the fridge",
    ),
    Dish(
        "bean chilli",
        "main course",
        70,
        (
            ("kidney beans", 480, "g"),
            ("peppers", 2, ""),
            ("onions", 2, ""),
            ("tomatoes", 800, "g"),
            ("chilli powder", 6, "g"),
        ),
        (
            "Brown the chopped onions and peppers over a strong heat.",
            "Add the chilli powder and let it toast for half a minute.",
            "Tip in the tomatoes and simmer them for half an hour.",
            "Add the beans, cook for another 20 minutes and season at the end.",
        ),
        "A square of dark chocolate makes the sauce rounder",
        "four days in the fridge and half a year in the freezer",
    ),
    Dish(
        "pancakes",
        "breakfast",
        30,
        (("flour", 200, "g"), ("milk", 400, "ml"), ("eggs", 3, ""), ("butter", 40, "g")),
        (
            "Whisk the flour, the eggs and a third of the milk until there are no lumps.",
            "Stir in the rest of the milk and the melted butter and rest the batter for ten minutes.",
            "Wipe a hot pan with a little butter and pour in a thin layer.",
            "Turn each pancake when its edge comes away by itself.",
        ),
        "The first pancake is for the cook: it only tests the pan",
        "one day; wrap them so that they stay soft",
    ),
    Dish(
        "roast vegetables",
        "side dish",
        60,
        (
            ("parsnips", 400, "g"),
            ("carrots", 400, "g"),
            ("beetroot", 300, "g"),
            ("olive oil", 60, "ml"),
            ("thyme", 5, "g"),
        ),
        (
            "Heat the oven to 200 °C with the tray inside.",
            "Cut the vegetables into sticks of one thickness.",
            "Toss them in the oil with the thyme and some salt.",
            "Roast them for 40 minutes and turn them once halfway.",
        ),
        "Give them room: crowded vegetables steam and do not brown",
        "three days, and cold they make a fine salad",
    ),
)
