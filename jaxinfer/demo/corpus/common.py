"""Everyday words, those of our own prompts among them. Names and things in training are now and then such a word, or
halves of two, so that every token is copied sometimes: one that is only ever read would never be written."""

_WORDS = """
about above across after again air all almost alone along already also always among amount animal answer any anything
appear area arm around arrive art ask away baby back bad bank base beautiful because become bed before begin behind
believe below best better between big bird bit black blood body bone born both bottom boy branch brave break bright
broken brother build building business busy call calm came capital care carry catch caught cause center certain chance
change child choose circle city clear climb close cloth cloud cold common complete contain continue control cool
corner correct cost could country course cover create cross crowd cry current cut daily dance danger dark daughter day
dead deal dear decide deep depend design destroy develop die differ difficult dinner direct discover distance divide
doctor does done door double doubt down dream drink drive drop dry during dust each early earth east easy eat edge
effort eight either else empty end enemy enjoy enough enter equal escape even evening ever every exact example except
excite exercise expect experience explain eye face fact fail fair fall family famous far fast father fear feel feet
few field fight figure fill final find fine finger finish fire first fish fit five flat floor flow flower fly follow
food foot force foreign forest forget form forward found four free fresh friend front fruit full fun game gave general
gentle get girl give glad gold gone good govern grand grass great ground group grow guess guide half hand happen happy
hard hat have head hear heart heat heavy height help here high hold holiday home honest hope hour house how huge human
hundred hungry hurry hurt idea important inch include increase industry inside instead interest into island job join
journey judge jump just keep kill kind king kitchen knew know lady land language large last late laugh law lead learn
least leave left leg length less lesson level library life lift light like line listen little live local long look
lose loud love low luck lunch machine made main make many mark market marry match material matter may mean measure
meat medical meet member mention middle might mile milk million mind minute miss mistake modern moment money month
moon more morning most mother mountain mouth move much music must narrow nation nature near neck need neighbor never
new news next nice night nine noise none north nose nothing notice now number object ocean offer office often oil once
only operate opposite orbit order other our out outside over own oxygen page paint pair parent park part party pass
past path pattern pay peace people perhaps period person photograph phrase picture piece place plain plan plane plant
play please plural point police poor popular position possible pound power practice prepare present press pretty price
print prison probable problem process produce product project proper protect proud prove provide public pull purpose
push put quality quarter queen question quick quiet quite race rain raise range rather reach read ready real reason
receive record region remember repeat reply report require rest result return rich ride right rise river road room
root rough round row rule run safe said sail salt same sand save scale school science sea season seat second secret
section see seem select sell sentence separate serious serve seven several shade shadow shape share sharp shine ship
shop shore short should shoulder shout show sick side sight sign silent silver simple since sing single sister size
skill skin sky sleep slow small smell smile smoke smooth snow social society soft soldier solution some son song soon
sound south space speak special speech speed spell spend spot spread spring square stand star state station stay steam
steel step still stop story straight strange stream street stretch strong student study subject success such sudden
suffer sugar suggest summer sun supply support sure surface surprise sweet swim system tail take talk tall taste teach
team tear tell temperature ten term test than thank that their them then there these they thick thin thing think third
those though thought thousand three through time tiny tired today together tomorrow tone too took tooth top total
touch toward town track trade travel tree triangle trip trouble truck true trust try turn twelve twenty two type uncle
under understand unit until upon use usual valley value vary very village visit voice vowel wait walk wall want war
warm wash waste water wave way wear weather week weight welcome well went were west what where whether which while
white who whole whose why wide wife wild will win wind window wing winter wise wish with without woman wonder wood
word work world worry worse would write wrong year yellow yes yesterday yet young zero yours assistant function
functions description properties arguments required integer string boolean array enum helpful translate extract plus
friendly brief briefly location questions json polite name words quantity calendar article duration schedule start
English concise send set data date somebody recipient named title cell church museum gets load creates counts search
message buy switch user songs things controls belongs translates tells web sends somewhere plays purchase hey thanks
given quickly returns his model demo jaxinfer token tokens server pages cache memory weights minutes timer alarm on
off to at by for from in of it is are was be can do i if me my no not oh ok or so us we you your he she and a the this
computer python code file files list sort error robot translation answers calculator sum item items contact text query
keyword results status event weekday target label id key column input output prompt context budget greet greeting
hello goodbye afternoon noon midnight Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March
April June July August September October November December France Germany Spain Italy Japan China Canada Brazil Europe
Asia Africa America
"""
COMMON = tuple(_WORDS.split())
